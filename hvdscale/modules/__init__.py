"""Batch-norm and dropout by ghost groups: replacements for torch's in your own models.

    from hvdscale.modules import BatchNorm, Dropout, convert
"""
from .layers import OF_TORCH, BatchNorm, Dropout, convert, is_batch_norm, is_replaced

__all__ = ["OF_TORCH", "BatchNorm", "Dropout", "convert", "is_batch_norm", "is_replaced"]
