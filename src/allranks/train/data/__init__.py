"""Any DataLoader → each sample once over all ranks, on the device, with proof. Imports torch."""

from allranks.train.data.audit import AuditReport
from allranks.train.data.dict_loader import DictLoader
from allranks.train.data.feed import Feed, FeedOptions, Share, make_feed
from allranks.train.data.from_tensors import to_dataloader
from allranks.train.data.infinite import InfiniteTensorDataset
from allranks.train.data.move import to_device

__all__ = [
    "AuditReport",
    "DictLoader",
    "Feed",
    "FeedOptions",
    "InfiniteTensorDataset",
    "Share",
    "make_feed",
    "to_dataloader",
    "to_device",
]
