"""Models of sequences: their sizes, what a position may see, that padding and company change nothing, and decoding."""
import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hvdscale.modules import Dropout
from hvdscale.modules.ghost_groups import GhostGroups
from hvdscale.plan.shards import Pass
from hvdscale.workers.group import SingleWorker
from hvdscale.workloads.large.sequences import LSTMLM, SIZES, TransformerLM, TranslationTransformer, sinusoids
from tests.wording import refusals

V, PAD, BEGIN, END = 13, 0, 1, 2
SMALL = dict(layers=2, width=8, hidden=12, heads=2)
LANGUAGE_MODELS = {"transformer": lambda **more: TransformerLM(V, **SMALL, **more),
                   "tied transformer": lambda **more: TransformerLM(V, **SMALL, tied=True, **more),
                   "lstm": lambda **more: LSTMLM(V, hidden=9, projection=5, embedding=7, **more),
                   "deep lstm": lambda **more: LSTMLM(V, hidden=9, projection=0, embedding=7, layers=2, **more)}
each_language_model = pytest.mark.parametrize("build", LANGUAGE_MODELS.values(), ids=LANGUAGE_MODELS)
each_tying = pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])


def seeded(build, seed=0, **more):
    torch.manual_seed(seed)
    return build(**more).double()


def tokens(n, length, seed=1, least=3):
    return torch.randint(least, V, (n, length), generator=torch.Generator().manual_seed(seed))


def translator(tied=True):
    """A model with something in all its parameters, of a seed at which translations differ in length and words."""
    model = seeded(lambda: TranslationTransformer(V, **SMALL, tied=tied), 0 if tied else 7).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, dtype=torch.float64)
    return model


def padded(rows, length=None):
    filled = torch.full((len(rows), length or max(map(len, rows))), PAD)
    for to, row in zip(filled, rows):
        to[:len(row)] = torch.as_tensor(row)
    return filled


# sizes

def attention_size(width):
    return 4 * width**2


def feed_forward_size(width, hidden):
    return 2 * width * hidden + hidden + width


def transformer_size(vocabulary, layers, width, hidden, heads, tied):
    norms, matrices = 2 * layers + 1, 1 if tied else 2
    return (layers * (attention_size(width) + feed_forward_size(width, hidden)) + norms * 2 * width +
            matrices * vocabulary * width)


def lstm_size(vocabulary, hidden, projection, embedding, layers):
    width, total, inputs = projection or hidden, vocabulary * embedding, embedding
    for _ in range(layers):
        total += 4 * hidden * (inputs + width + 2) + projection * hidden
        inputs = width
    return total + vocabulary * (width + 1)


def translation_size(vocabulary, layers, width, hidden, heads, tied):
    encoder = layers * (attention_size(width) + feed_forward_size(width, hidden) + 4 * width)
    decoder = layers * (2 * attention_size(width) + feed_forward_size(width, hidden) + 6 * width)
    return encoder + decoder + 4 * width + (1 if tied else 3) * vocabulary * width


def parameters(build, **arguments):
    with torch.device("meta"):
        return sum(p.numel() for p in build(**arguments).parameters())


@each_tying
@pytest.mark.parametrize("vocabulary, size", [(32000, size) for size in SIZES.values()] +
                         [(77, dict(layers=3, width=9, hidden=5, heads=3))], ids=[*SIZES, "odd"])
def test_transformers_have_as_many_parameters_as_their_closed_forms(vocabulary, size, tied):
    assert parameters(TransformerLM, vocabulary=vocabulary, **size, tied=tied) == transformer_size(
        vocabulary, **size, tied=tied)
    assert parameters(TranslationTransformer, vocabulary=vocabulary, **size, tied=tied) == translation_size(
        vocabulary, **size, tied=tied)


def test_the_base_translation_transformer_has_65_million_parameters():
    """Vaswani et al. 2017, table 3, of a vocabulary of about 37,000."""
    assert abs(parameters(TranslationTransformer, vocabulary=37000) / 65e6 - 1) < 0.04


@pytest.mark.parametrize("size", [dict(hidden=2048, projection=512, embedding=512, layers=1),
                                  dict(hidden=6, projection=0, embedding=4, layers=3),
                                  dict(hidden=6, projection=5, embedding=7, layers=2)], ids=str)
def test_lstms_have_as_many_parameters_as_their_closed_form(size):
    assert parameters(LSTMLM, vocabulary=32000, **size) == lstm_size(32000, **size)


def test_sizes_that_make_no_model_are_refused_with_what_fits(golden):
    golden("sequence_models", refusals("sequence_models", ValueError, globals()))


# what a position sees

@each_language_model
def test_a_token_changes_the_logits_of_its_own_and_later_positions_alone(build):
    model, given = seeded(build), tokens(2, 6)
    before = model(given)
    for place in range(6):
        changed = given.clone()
        changed[:, place] = 3 + (changed[:, place] - 2) % (V - 3)
        after = model(changed)
        torch.testing.assert_close(after[:, :place], before[:, :place], rtol=0, atol=1e-12)
        assert (after[:, place:] - before[:, place:]).abs().amax(dim=2).min() > 1e-9


@each_language_model
def test_what_pads_the_end_of_a_row_changes_nothing_before_it(build):
    model, given = seeded(build), tokens(2, 5)
    longer = functional.pad(given, (0, 4), value=PAD)
    torch.testing.assert_close(model(longer)[:, :5], model(given), rtol=0, atol=1e-12)


@each_language_model
def test_an_examples_logits_do_not_depend_on_the_rest_of_the_batch(build):
    model, given = seeded(build), tokens(4, 5)
    torch.testing.assert_close(model(given)[2:3], model(given[2:3]), rtol=0, atol=1e-12)


def test_positions_are_the_published_sinusoids():
    width, like = 7, torch.zeros(1, dtype=torch.float64)
    wanted = [[wave(place / 10000**(2 * i / width)) for wave, count in ((np.sin, 4), (np.cos, 3)) for i in range(count)]
              for place in range(5, 9)]
    np.testing.assert_allclose(sinusoids(5, 4, width, like).numpy(), wanted, rtol=1e-12)


def test_a_transformer_gives_what_torchs_own_layers_give():
    """torch.nn.TransformerEncoderLayer with norm_first, the same weights, biases of attention zero."""
    model, given, width = seeded(lambda: TransformerLM(V, **SMALL)), tokens(3, 5), SMALL["width"]
    x = model.embedding(given)
    for ours in model.layers:
        theirs = nn.TransformerEncoderLayer(width, SMALL["heads"], SMALL["hidden"], 0.0, batch_first=True,
                                            norm_first=True, dtype=torch.float64)
        attention = ours.attention
        theirs.load_state_dict({
            "self_attn.in_proj_weight": torch.cat([m.weight for m in (attention.query, attention.key,
                                                                      attention.value)]),
            "self_attn.in_proj_bias": torch.zeros(3 * width), "self_attn.out_proj.weight": attention.mix.weight,
            "self_attn.out_proj.bias": torch.zeros(width),
            **{f"norm1.{k}": v for k, v in ours.attention_norm.state_dict().items()},
            **{f"norm2.{k}": v for k, v in ours.feed_norm.state_dict().items()},
            **{f"linear1.{k}": v for k, v in ours.feed_forward[0].state_dict().items()},
            **{f"linear2.{k}": v for k, v in ours.feed_forward[2].state_dict().items()}})
        mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
        x = theirs(x, src_mask=mask, is_causal=True)
    torch.testing.assert_close(model(given), model.norm(x) @ model.readout.weight.T, rtol=0, atol=1e-12)


def test_an_lstm_gives_what_its_equations_say():
    """One layer with projection, a position at a time (Sak et al. 2014, arXiv:1402.1128, without peepholes)."""
    model, given = seeded(LANGUAGE_MODELS["lstm"]), tokens(2, 4)
    layer, state = model.layers[0], torch.zeros(2, 9, dtype=torch.float64)
    out, logits = torch.zeros(2, 5, dtype=torch.float64), []
    assert (layer.bias_ih_l0[9:18] == 1).all()
    for x in model.embedding(given).unbind(1):
        gates = x @ layer.weight_ih_l0.T + layer.bias_ih_l0 + out @ layer.weight_hh_l0.T + layer.bias_hh_l0
        i, f, g, o = gates.chunk(4, dim=1)
        state = f.sigmoid() * state + i.sigmoid() * g.tanh()
        out = (o.sigmoid() * state.tanh()) @ layer.weight_hr_l0.T
        logits.append(model.readout(out))
    torch.testing.assert_close(model(given), torch.stack(logits, dim=1), rtol=0, atol=1e-12)


# training

@each_tying
def test_a_translator_learns_to_turn_sentences_round_and_then_decodes_them(tied):
    torch.manual_seed(0)
    rows = [row[:2 + number % 3] for number, row in enumerate(tokens(6, 4).tolist())]
    source, wanted = padded(rows), padded([row[::-1] for row in rows])
    target = padded([[BEGIN, *row[::-1]] for row in rows])
    labels = padded([[*row[::-1], END] for row in rows])
    model = TranslationTransformer(V, layers=1, width=24, hidden=32, heads=2, tied=tied, dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(240):
        loss = functional.cross_entropy(model(source, target).flatten(0, 1).float(), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.02
    model.eval()
    for beam in (1, 3):
        assert model.decode(source, 4, beam).tolist() == wanted.tolist()


CALLS = {**{name: (build, lambda model: model(tokens(4, 5))) for name, build in LANGUAGE_MODELS.items()},
         **{f"{'' if tied else 'un'}tied translation": (
             lambda tied=tied, **more: TranslationTransformer(V, **SMALL, tied=tied, **more),
             lambda model: model(padded([[3, 4, 5], [6]] * 2), tokens(4, 6))) for tied in (True, False)}}
each_model = pytest.mark.parametrize("build, call", CALLS.values(), ids=CALLS)


@each_model
@pytest.mark.parametrize("mode", ["fp32", "fp64", "bf16", "meta"])
def test_every_parameter_gets_a_gradient(build, call, mode):
    torch.manual_seed(0)
    model = build(dropout=0.1)
    if mode == "meta":
        model = model.to("meta")
        with torch.device("meta"):
            logits = model(*[torch.empty(4, 5, dtype=torch.int64)] * (2 if hasattr(model, "encode") else 1))
    else:
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16"):
            logits = call(model.double() if mode == "fp64" else model)
    assert logits.shape[0] == 4 and logits.shape[2] == V
    logits.float().square().sum().backward()
    assert all(p.grad is not None and (mode == "meta" or p.grad.isfinite().all()) for p in model.parameters())


@each_model
def test_the_seed_alone_decides_what_a_model_starts_from(build, call):
    one, two, other = (call(seeded(build, seed).eval()) for seed in (5, 5, 6))
    assert torch.equal(one, two) and not torch.equal(one, other)


@each_model
def test_dropout_is_ours_and_masks_follow_an_example_from_pass_to_pass(build, call):
    model = seeded(build, dropout=0.3)
    kinds = [type(m) for m in model.modules() if "Dropout" in type(m).__name__]
    assert kinds and set(kinds) == {Dropout} and not any(getattr(m, "dropout", 0) for m in model.modules()
                                                         if isinstance(m, nn.LSTM))
    ghosts = GhostGroups(0, SingleWorker(), torch.device("cpu"))
    ghosts.attach(model)
    given = [tokens(4, 5)] * (2 if hasattr(model, "encode") else 1)

    def rows(first, last):
        ghosts.at(3, [0, 2, 4], Pass(first, last))
        return model(*[part[first:last] for part in given])
    whole = rows(0, 4)
    assert not torch.allclose(whole, model.eval()(*given))
    model.train()
    torch.testing.assert_close(torch.cat((rows(0, 1), rows(1, 4))), whole, rtol=0, atol=1e-12)


@each_model
def test_each_dropout_that_is_there_acts(build, call):
    """Its masks alone make the logits of a pass differ."""
    model = seeded(build, dropout=0.5)
    drops = [module for module in model.modules() if isinstance(module, Dropout)]
    for alone in drops:
        for module in drops:
            module.p = 0.5 if module is alone else 0.0
        assert not torch.allclose(call(model), call(model))


@each_tying
def test_a_state_dict_names_a_tied_matrix_once(tied):
    names = [name for name in TranslationTransformer(V, **SMALL, tied=tied).state_dict() if "layers" not in name]
    assert sum(name in ("source.weight", "target.weight", "readout.weight") for name in names) == (1 if tied else 3)


# translation

@each_tying
def test_padding_of_the_source_changes_no_logits(tied):
    model, source, target = translator(tied), padded([[3, 4, 5], [6]]), tokens(2, 4)
    logits = model(source, target)
    torch.testing.assert_close(model(padded([[3, 4, 5], [6]], 9), target), logits, rtol=0, atol=1e-12)
    torch.testing.assert_close(model(source[1:, :1], target[1:]), logits[1:], rtol=0, atol=1e-12)


def test_the_target_is_seen_up_to_each_position_and_the_source_whole():
    model, source, target = translator(), tokens(2, 4), tokens(2, 5, seed=2)
    before = model(source, target)
    changed = target.clone()
    changed[:, 3] = 3 + (changed[:, 3] - 2) % (V - 3)
    moved = (model(source, changed) - before).abs().amax(dim=(0, 2))
    assert (moved[:3] < 1e-12).all() and (moved[3:] > 1e-9).all()
    changed = source.clone()
    changed[:, -1] = 3 + (changed[:, -1] - 2) % (V - 3)
    assert (model(changed, target) - before).abs().amax(dim=(0, 2)).min() > 1e-9


SOURCES = [row[:1 + number % 6] for number, row in enumerate(tokens(18, 6, seed=7).tolist())]


def searched(model, row, longest, beam, alpha):
    """Beam search with lists, the whole target computed anew each time."""
    def rank(hypothesis):
        taken, log_p = hypothesis
        return log_p / ((5 + len(taken) - 1) / 6)**alpha
    beams = [([BEGIN], 0.0)]
    for _ in range(longest):
        candidates = []
        for taken, log_p in beams:
            if taken[-1] == END:
                candidates.append((taken, log_p))
                continue
            logits = model(torch.tensor([row]), torch.tensor([taken]))[0, -1]
            logits[[PAD, BEGIN]] = -torch.inf
            candidates += [([*taken, token], log_p + value)
                           for token, value in enumerate(logits.log_softmax(0).tolist())]
        beams = sorted(candidates, key=rank, reverse=True)[:beam]
    return [token for token in beams[0][0][1:] if token != END]


@pytest.mark.parametrize("tied, beam, alpha, count, longest", [
    (True, 1, 0.6, 18, 8), (False, 1, 0.6, 18, 8), (True, 2, 0.6, 6, 5), (True, 4, 0.0, 6, 5), (False, 4, 2.0, 6, 5)])
def test_a_beam_finds_what_a_search_with_lists_finds(tied, beam, alpha, count, longest):
    model = translator(tied)
    wanted = [searched(model, row, longest, beam, alpha) for row in SOURCES[:count]]
    assert len({tuple(row) for row in wanted}) > 1              # the sentences differ
    assert model.decode(padded(SOURCES[:count]), longest, beam, alpha).tolist() == padded(wanted, longest).tolist()


def test_a_larger_length_penalty_makes_longer_translations():
    lengths = [(translator().decode(padded(SOURCES), 5, 4, alpha) != PAD).sum(1) for alpha in (0.0, 3.0)]
    assert (lengths[0] <= lengths[1]).all() and (lengths[0] < lengths[1]).sum() > 3


@pytest.mark.parametrize("beam", [1, 3])
def test_neither_company_nor_padding_changes_a_translation(beam):
    model, length = translator(), 7
    together = model.decode(padded(SOURCES, 11), length, beam)
    alone = [model.decode(torch.tensor([row]), length, beam)[0].tolist() for row in SOURCES]
    assert together.tolist() == alone
    assert model.decode(padded(SOURCES)[[5, 2]], length, beam).tolist() == [alone[5], alone[2]]


def test_decoding_keeps_no_graph_and_knows_no_sentence_as_well():
    model = translator()
    assert not model.decode(padded(SOURCES[:2]), 3).requires_grad
    assert model.decode(padded(SOURCES)[:0], 3).shape == (0, 3)
