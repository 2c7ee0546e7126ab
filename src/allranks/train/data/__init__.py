"""Make any DataLoader distributed: each sample once per epoch over all ranks, on the device, audited."""

from allranks.train.data.audit import AuditReport
from allranks.train.data.base import BatchWeight, DistributedLoader, LoaderOptions
from allranks.train.data.batch_transfer import to_device
from allranks.train.data.dict_loader import DictLoader
from allranks.train.data.make_loader import distribute_loader
from allranks.train.data.tensor_loader import InfiniteTensorDataset, to_dataloader

__all__ = [
    "AuditReport",
    "BatchWeight",
    "DictLoader",
    "DistributedLoader",
    "InfiniteTensorDataset",
    "LoaderOptions",
    "distribute_loader",
    "to_dataloader",
    "to_device",
]
