"""Data sets with a public address: their files, checksums, terms, and layout in a folder.

Only ``hvdscale-data fetch`` downloads them; training never does.

Sizes and SHA-256 checksums are those of tensorflow/datasets (MNIST, Fashion-MNIST, CIFAR, LM1B, WMT), of several
independent public repositories (WikiText), and of local copies (Multi30k, tiny shakespeare). Not every address has been
tried.
"""
from __future__ import annotations

from dataclasses import dataclass, field

from .download import PublishedFile


@dataclass(frozen=True)
class Archive:
    """A published archive, unpacked and then removed; members: pattern -> name in the folder, or a subfolder/."""

    file: PublishedFile
    members: dict[str, str]
    count: int                  # of files unpacked


@dataclass(frozen=True)
class DataSet:
    """A data set that ``hvdscale-data fetch`` downloads.

    files    kept in the folder as published, or Archives
    command  a command that uses it, with {folder}
    joined   name of a text file -> the files that are concatenated into it
    """

    title: str
    files: tuple[PublishedFile | Archive, ...]
    terms: str
    command: str
    joined: dict[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def published(self) -> tuple[PublishedFile, ...]:
        return tuple(file.file if isinstance(file, Archive) else file for file in self.files)


def _files(bases: tuple[str, ...], *rows: str) -> tuple[PublishedFile, ...]:
    """Files under the same base addresses; a row has name, size and SHA-256."""
    return tuple(PublishedFile(name, tuple(base + name for base in bases), sha256, int(size))
                 for name, size, sha256 in map(str.split, rows))


def _archive(addresses: tuple[str, ...], size: int | None, sha256: str, members: dict[str, str], count: int) -> Archive:
    return Archive(PublishedFile(addresses[0].rpartition("/")[2], addresses, sha256, size), members, count)


def _wikitext(number: int, sha256: str) -> DataSet:
    archive = f"wikitext-{number}-v1.zip"
    addresses = (f"https://wikitext.smerity.com/{archive}",
                 f"https://s3.amazonaws.com/research.metamind.io/wikitext/{archive}")
    members = {f"wikitext-{number}/wiki.{part}.tokens": f"{part}.txt" for part in ("train", "valid", "test")}
    return DataSet(f"WikiText-{number}, word level (Merity et al. 2016)",
                   (_archive(addresses, None, sha256, members, 3),), "CC BY-SA, as Wikipedia",
                   "hvdscale-train text/transformer --data-dir {folder}")


def _wmt(place: str, size: int, sha256: str, stem: str) -> Archive:
    members = {f"{stem}.{language}": f"{stem.rpartition('/')[2]}.{language}" for language in ("de", "en")}
    return _archive((f"https://{place}", f"http://{place}"), size, sha256, members, 2)


STATMT = "www.statmt.org/lm-benchmark/1-billion-word-language-modeling-benchmark-r13output.tar.gz"
MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset"
DATA_SETS = {
    "mnist": DataSet(
        "MNIST", _files(
            ("https://storage.googleapis.com/cvdf-datasets/mnist/", "https://ossci-datasets.s3.amazonaws.com/mnist/"),
            "train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
        "commonly given as CC BY-SA 3.0", "hvdscale-train mnist/simple_cnn --data-dir {folder}"),
    "fashion_mnist": DataSet(
        "Fashion-MNIST", _files(
            ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
             "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"),
            "train-images-idx3-ubyte.gz 26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            "train-labels-idx1-ubyte.gz 29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            "t10k-images-idx3-ubyte.gz 4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            "t10k-labels-idx1-ubyte.gz 5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
        "MIT, Zalando SE", "hvdscale-train fashion_mnist/simple_cnn --data-dir {folder}"),
    "cifar_10": DataSet(
        "CIFAR-10, binary version", _files(
            ("https://www.cs.toronto.edu/~kriz/",),
            "cifar-10-binary.tar.gz 170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
        "none stated; in use for research", "hvdscale-train cifar_10/resnet_8 --data-dir {folder}"),
    "cifar_100": DataSet(
        "CIFAR-100, binary version", _files(
            ("https://www.cs.toronto.edu/~kriz/",),
            "cifar-100-binary.tar.gz 168513733 58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),
        "none stated; in use for research", "hvdscale-train cifar_100/resnet_32 --data-dir {folder}"),
    "lm1b": DataSet(
        "One Billion Word benchmark (Chelba et al. 2013)", (_archive(
            (f"https://{STATMT}", f"http://{STATMT}"), 1792209805,
            "01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
            {"*/training-monolingual.tokenized.shuffled/news.en-000??-of-00100":
             "training-monolingual.tokenized.shuffled/",
             "*/heldout-monolingual.tokenized.shuffled/news.en.heldout-000??-of-00050":
             "heldout-monolingual.tokenized.shuffled/"}, 99 + 50),),
        "from WMT's News Crawl, for research", "hvdscale-train lm1b/transformer --data-dir {folder}"),
    "multi30k": DataSet(
        "Multi30k, English and German (Elliott et al. 2016)", _files(
            (f"{MULTI30K}/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/",
             f"{MULTI30K}/master/data/task1/raw/"),
            "train.en.gz 568929 d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
            "train.de.gz 637044 726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
            "val.en.gz 21650 14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
            "val.de.gz 24681 f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
            "test_2016_flickr.en.gz 21077 611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
            "test_2016_flickr.de.gz 22890 9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
        "captions of Flickr30K: non-commercial research and education",
        "hvdscale-train multi30k/transformer --data-dir {folder}"),
    "tinyshakespeare": DataSet(
        "tiny shakespeare", _files(
            ("https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/",),
            "input.txt 1115394 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"),
        "public domain", "hvdscale-train text/transformer --data-dir {folder}"),
    "wikitext-2": _wikitext(2, "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c"),
    "wikitext-103": _wikitext(103, "242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590"),
    "wmt14": DataSet(
        "WMT 2014, English and German, with newstest2013", (
            _wmt("www.statmt.org/wmt13/training-parallel-europarl-v7.tgz", 657632379,
                 "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7", "training/europarl-v7.de-en"),
            _wmt("www.statmt.org/wmt13/training-parallel-commoncrawl.tgz", 918311367,
                 "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5", "commoncrawl.de-en"),
            _wmt("www.statmt.org/wmt14/training-parallel-nc-v9.tgz", 80418416,
                 "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
                 "training/news-commentary-v9.de-en"),
            _wmt("data.statmt.org/wmt19/translation-task/dev.tgz", 38654961,
                 "7a7deccf82ebb05ba508dba5eb21356492224e8f630ec4f992132b029b4b25e7", "dev/newstest2013")),
        "for research", "hvdscale-train wmt/transformer --data-dir {folder} --data-arg test=none",
        {f"train.{language}": tuple(f"{corpus}.de-en.{language}" for corpus in (
            "europarl-v7", "commoncrawl", "news-commentary-v9")) for language in ("de", "en")}),
}

BY_HAND = {
    "imagenet": "requires registration at https://image-net.org. Unpack it into DIR/train/SYNSET/*.JPEG and "
                "DIR/val/SYNSET/*.JPEG, then: hvdscale-train imagenet/resnet_50 --data-dir DIR",
    "open_images_v4": "has its tables and download instructions at https://storage.googleapis.com/openimages/web/"
                      "download_v4.html. Then: hvdscale-train open_images_v4/resnet_50 --data-dir DIR",
    "common_crawl": "is not one fixed text: choose WET files at https://commoncrawl.org and convert them to text. "
                    "Then: hvdscale-train common_crawl/transformer --data-dir DIR",
    "digits": "comes with scikit-learn: hvdscale-train digits/fc",
}
