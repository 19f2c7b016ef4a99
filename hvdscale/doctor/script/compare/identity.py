"""Whether an index means the same example on all ranks, by the contents of what they read."""
from __future__ import annotations

from ..record import Record

Contents = dict[int | str, str]         # of an example, by its index


def same_data(records: list[Record], data: tuple[str, int]) -> bool | None:
    """Whether all ranks of the runs have one data set of that class and length; None if nothing shows it.

    Ranks may have files of their own. Where examples are augmented, a part that is not, such as the label, is enough:
    it has to differ between examples, and to agree at each index that two ranks have read.
    """
    read = [{at: content for one in record.iterations if one.data == data and not one.iterable for batch in one.batches
             for at, content in zip(batch.ids, batch.contents)} for record in records]
    read = [one for one in read if one]
    joined = set(range(len(read[:1])))
    for _ in read:
        for at, one in enumerate(read):
            for other in list(joined):
                agree = _agree(one, read[other])
                if agree is False:
                    return False
                if agree:
                    joined.add(at)
    return True if read and len(joined) == len(read) > 1 else None


def _agree(one: Contents, other: Contents) -> bool | None:
    """Whether two ranks read the same at the indices that both read; None where there are none."""
    common = [at for at in one if at in other]
    if not common:
        return None
    if all(one[at] == other[at] for at in common):
        return True
    pairs = [(one[at].split("."), other[at].split(".")) for at in common]
    parts = min(len(each) for both in pairs for each in both)
    return any(all(a[part] == b[part] for a, b in pairs) and len({a[part] for a, _ in pairs}) > 1
               for part in range(parts))
