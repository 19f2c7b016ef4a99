"""Which way metrics get better, by their names."""
import pytest

from hvdscale.log.directions import better

SMALLER = """top1_error precision_error recall_loss loss_giou iou_loss auc_err ece eer fid wer CharErrorRate
lpips nll LanguagePerplexity FrechetInceptionDistance KLDivergence DaviesBouldinScore rmse
MeanAbsoluteError bpb"""
LARGER = """dice psnr ssim mAP50 mAP50-95(B) bbox_mAP_50 mIoU MeanIU mean_io_u Top-1 acc@1 exact_match rougeL f1 R2Score
BERTScore AP50 ScaleInvariantSignalDistortionRatio BinaryAUROC recall@10 WordInfoPreserved
cohen_kappa average_precision"""
UNKNOWN = """x InfoLM duration"""
SMALLER += " ContinuousRankedProbabilityScore LearnedPerceptualImagePatchSimilarity DISTS mAPE translation_edit_rate"
LARGER += " DistanceIntersectionOverUnion generalized_intersection_over_union hella VisualInformationFidelity PCK"
NAMES = {"smaller": SMALLER, "larger": LARGER, "": UNKNOWN}


@pytest.mark.parametrize("way", NAMES)
def test_errors_and_losses_win_then_the_longest_phrase(way):
    assert {name: better(f"val/{name}") for name in NAMES[way].split()} == dict.fromkeys(NAMES[way].split(), way)
