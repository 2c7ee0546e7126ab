"""Any DataLoader → each sample once over all ranks, on the device, with proof. Imports torch."""

from allranks.data.audit import AuditReport
from allranks.data.dict_loader import DictLoader
from allranks.data.feed import Feed, FeedOptions, Share, make_feed
from allranks.data.from_tensors import to_dataloader
from allranks.data.infinite import InfiniteTensorDataset
from allranks.data.move import to_device

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
