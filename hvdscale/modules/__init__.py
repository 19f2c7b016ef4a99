"""Batch-norm and dropout by ghost groups: for your own models, in place of torch's.

    from hvdscale.modules import BatchNorm, Dropout, convert
"""
from .layers import OF_TORCH, BatchNorm, Dropout, convert, is_batch_norm, is_replaced

__all__ = ["OF_TORCH", "BatchNorm", "Dropout", "convert", "is_batch_norm", "is_replaced"]
