"""Which way a metric gets better, by the words of its name.

    better("val/top1_error") -> "smaller"           better("val/dice") -> "larger"          better("val/x") -> ""

An error or a loss gets better downwards whatever else its name says; of other words the longest phrase decides. Facts
are those of torchmetrics 1.9 (``higher_is_better``), of pycocotools, sacrebleu, TorchAudio and what trainers log; where
torchmetrics and a metric's own paper differ, such as Davies-Bouldin's index and word information preserved, the paper.
"""

import re
from functools import lru_cache

from .schema import LARGER, SMALLER

LOST = re.compile(r"loss(es)?|errors?|err|rmse|mse|mae|crossentropy|.+(loss|error|entropy)")   # wins over other words
LOWER = """entropy|xent|perplexity|ppl|nll|negative log likelihood|neg log likelihood|log loss|logloss|bpb|bpc|bpd|
bits per byte|bits per character|bits per dim|mape|smape|wmape|msle|rmsle|nrmse|rse|log cosh|wer|cer|ter|mer|der|eer|
eed|tsr|ece|mce|ace|brier|brier score|crps|fid|kid|mifid|fad|fvd|lpips|dists|inception distance|distance|divergence|
kld|kl|jsd|hausdorff|hd|assd|asd|hamming|edit distance|editdistance|ergas|rase|spectral angle|spectral distortion|
spatial distortion|total variation|davies bouldin|perceptual path length|word info lost|wil|fall out|fpr|fnr|
false positive rate|false negative rate|disparity|epe|abs rel|sq rel|deviance|tweedie deviance score|regret|hinge|
mpjpe|pa mpjpe|ade|fde|min ade|min fde|nme|cost|residual|toxicity|hallucination|ranked probability score|
image structure and texture similarity|perceptual image patch similarity|translation edit rate"""
HIGHER = """acc|accuracy|top|correct|prec|precision|recall|sensitivity|specificity|npv|ppv|predictive value|f|f score|
fbeta|fscore|hmean|auc|auroc|auprc|roc auc|pr auc|ap|map|ar|average precision|average recall|mrr|reciprocal rank|ndcg|
dcg|hit|hits|hit rate|hitrate|dice|jaccard|iou|giou|overlap|kappa|mcc|matthews|corr coef|corrcoef|correlation|pearson|
spearman|kendall|plcc|srcc|concordance|ccc|r2|r squared|explained variance|bleu|sacrebleu|rouge|meteor|chrf|cider|
spice|bertscore|bert score|bleurt|comet|exact match|em|squad|score|reward|rew|return|psnr|peak signal noise ratio|ssim|
structural similarity|uiqi|vif|qnr|scc|scr|vmaf|inception score|clip score|clipscore|pesq|stoi|estoi|sdr|sdri|snr|snri|
signal distortion ratio|signal noise ratio|intelligibility|mos|dnsmos|nisqa|srmr|win rate|winrate|success|success rate|
solve rate|pass|pass rate|pass at|homogeneity|completeness|v measure|silhouette|calinski|dunn|rand|mutual info|
mutual information|fowlkes mallows|panoptic quality|pq|sq|rq|quality|word info preserved|wip|similarity|csi|
critical success|hss|tpr|likelihood|elbo|converged|agreement|pearsonr|spearmanr|mota|motp|idf1|hota|cramers|theils|
intersection over union|information fidelity|assessment fusion|modulation energy ratio|tschuprows|nds|pck|rprecision|
contingency coefficient|mmlu|hella|hellaswag|gsm8k|arc|piqa|winogrande|boolq|truthfulqa|humaneval|mbpp|iu|io u"""
WORD = re.compile(r"[A-Z]+(?![a-z])\d*|[A-Z]?[a-z]+\d*|\d+")
WHOLE = (("IoU", "Iou"), ("mAPE", "Mape"), ("mAP", "Map"), ("APs", "Ap"), ("APm", "Ap"), ("APl", "Ap"),
         ("BLEURT", "Bleurt"))


PHRASES = {f" {phrase.strip()} ": way for text, way in ((LOWER, SMALLER), (HIGHER, LARGER))
           for phrase in text.replace("\n", "").split("|")}
KEPT = {word for phrase in PHRASES for word in phrase.split() if word[-1].isdigit()}      # whose digits are of the name


@lru_cache(maxsize=10_000)
def better(column: str) -> str:
    """Which way the metric of a column ``split/metric`` gets better, by its name: SMALLER, LARGER, or "" (unknown)."""
    name = column.partition("/")[2]
    for written, plain in WHOLE:
        name = name.replace(written, plain)
    words = [found.lower() for found in WORD.findall(name)]
    words = [word if word in KEPT else word.rstrip("0123456789") or word for word in words]
    if any(map(LOST.fullmatch, words)):
        return SMALLER
    text = f" {' '.join(words)} "
    found = sorted((phrase for phrase in PHRASES if phrase in text), key=len)
    ways = {PHRASES[phrase] for phrase in found if len(phrase) == len(found[-1])}
    return ways.pop() if len(ways) == 1 else ""
