"""Connectionist temporal classification: loss and decoding.

Both recur over time on the host, in NumPy, as calls inside the lazy graph.
"""

import functools

import numpy as np
from tinygrad import Tensor

from keras.src.backend.common.dtypes import result_type
from keras.src.backend.tinygrad.core import cast
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.engine.host_call import host_call
from keras.src.backend.tinygrad.numpy.common import to_int

# The score of having read a label before the first frame. Finite, so that a
# target that is too long for its output costs a lot rather than infinitely
# much, as in the numpy and jax backends.
LOG_NEVER = -1e5


def ctc_loss(target, output, target_length, output_length, mask_index=0):
    output = convert_to_tensor(output)
    dtype = result_type(output.dtype, "float32")
    output = cast(output, dtype)
    inputs = [
        output,
        convert_to_tensor(target, dtype="int32"),
        convert_to_tensor(target_length, dtype="int32"),
        convert_to_tensor(output_length, dtype="int32"),
    ]
    blank = _blank("ctc_loss", mask_index, output)
    ranks = [x.ndim for x in inputs]
    if ranks != [3, 2, 1, 1] or len({x.shape[0] for x in inputs}) > 1:
        raise ValueError(
            "`ctc_loss` expects `output` (batch, time, classes), `target` "
            "(batch, labels) and two lengths for each. Received: shapes "
            f"{[x.shape for x in inputs]}"
        )

    def gradient(inputs, outputs, output_grads):
        (slope,) = host_call(
            functools.partial(_loss_gradient, blank),
            inputs,
            [(inputs[0].shape, dtype)],
            name="the gradient of ctc_loss",
        )
        return [slope * output_grads[0].reshape(-1, 1, 1), None, None, None]

    (loss,) = host_call(
        functools.partial(_loss, blank),
        inputs,
        [((output.shape[0],), dtype)],
        gradient=gradient,
        name="ctc_loss",
    )
    return loss


def _blank(name, mask_index, output):
    classes = output.shape[-1] if output.ndim else 0
    if not -classes <= to_int("mask_index", mask_index) < classes:
        raise ValueError(
            f"`{name}` expects a `mask_index` that is one of the {classes} "
            f"classes. Received: mask_index={mask_index}, outputs of shape "
            f"{output.shape}"
        )
    return mask_index % classes


def _log_softmax(x):
    x = x.astype("float64")
    x -= x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


class _Lattice:
    """States that a path visits: the labels of a target, and blanks between.

    Attributes:
        log_prob: Class log-probabilities, `(batch, time, classes)`.
        labels: Class of each state, `(batch, states)`.
        emit: Log-probability of each state's class, `(time, batch, states)`.
        skips: Whether a path may enter a state from two states before,
            `(batch, states)`: across a blank, between different labels.
    """

    def __init__(self, blank, output, target):
        batch, time, classes = output.shape
        target = target.clip(0, classes - 1)
        self.log_prob = _log_softmax(output)
        self.labels = np.full((batch, 2 * target.shape[1] + 1), blank)
        self.labels[:, 1::2] = target
        index = np.broadcast_to(
            self.labels[:, None], (batch, time, self.labels.shape[1])
        )
        self.emit = np.take_along_axis(self.log_prob, index, 2).swapaxes(0, 1)
        self.skips = np.zeros(self.labels.shape, bool)
        self.skips[:, 3::2] = target[:, 1:] != target[:, :-1]

    def forward(self, output_length):
        """Scores the paths that end in each state, after each frame."""
        score = np.full(self.labels.shape, LOG_NEVER)
        score[:, 0] = 0
        scores = []
        for t, emit in enumerate(self.emit):
            one = _delayed(score, 1)
            two = np.where(self.skips, _delayed(score, 2), -np.inf)
            entered = np.logaddexp(np.logaddexp(score, one), two) + emit
            score = np.where(t < output_length[:, None], entered, score)
            scores.append(score)
        return scores

    def backward(self, output_length, final):
        """Scores how paths go on from each state, after each frame."""
        score = final
        scores = []
        for t in reversed(range(len(self.emit))):
            scores.append(score)
            ahead = score + self.emit[t]
            one = _advanced(ahead, 1)
            two = _advanced(np.where(self.skips, ahead, -np.inf), 2)
            left = np.logaddexp(np.logaddexp(ahead, one), two)
            score = np.where(t < output_length[:, None], left, final)
        return scores[::-1]

    def final(self, target_length):
        """Scores states 0 where a path may end, and -inf elsewhere."""
        state = np.arange(self.labels.shape[1])
        last = 2 * target_length[:, None]
        ends = (state == last) | (state == last - 1)
        return np.where(ends, 0.0, -np.inf)


def _delayed(score, steps):
    shifted = np.full_like(score, -np.inf)
    shifted[:, steps:] = score[:, :-steps]
    return shifted


def _advanced(score, steps):
    shifted = np.full_like(score, -np.inf)
    shifted[:, :-steps] = score[:, steps:]
    return shifted


def _loss(blank, output, target, target_length, output_length):
    lattice = _Lattice(blank, output, target)
    score = lattice.forward(output_length)[-1]
    ends = score + lattice.final(target_length)
    return -np.logaddexp.reduce(ends, axis=1)


def _loss_gradient(blank, output, target, target_length, output_length):
    lattice = _Lattice(blank, output, target)
    final = lattice.final(target_length)
    before = np.array(lattice.forward(output_length))
    after = np.array(lattice.backward(output_length, final))
    joint = before + after
    joint -= np.logaddexp.reduce(joint, axis=2, keepdims=True)
    # How much of the probability passes through each class at each frame.
    batch, time, classes = output.shape
    place = np.arange(batch)[:, None] * time * classes + lattice.labels
    place = place + np.arange(time)[:, None, None] * classes
    passing = np.bincount(
        place.ravel(), np.exp(joint).ravel(), minlength=output.size
    ).reshape(output.shape)
    slope = np.exp(lattice.log_prob) - passing
    frames = np.arange(time) < output_length[:, None]
    return np.where(frames[..., None], slope, 0.0)


def ctc_decode(
    inputs,
    sequence_lengths,
    strategy="greedy",
    beam_width=100,
    top_paths=1,
    merge_repeated=True,
    mask_index=0,
):
    x = convert_to_tensor(inputs)
    dtype = result_type(x.dtype, "float32")
    x = cast(x, dtype)
    lengths = convert_to_tensor(sequence_lengths, dtype="int32")
    if x.ndim != 3 or 0 in x.shape[1:]:
        raise ValueError(
            "`ctc_decode` expects inputs of shape (batch, time, classes). "
            f"Received: inputs.shape={x.shape}"
        )
    batch, time, classes = x.shape
    top_paths = to_int("top_paths", top_paths, 1)
    blank = _blank("ctc_decode", -1 if mask_index is None else mask_index, x)
    if strategy == "greedy":
        (paths,) = host_call(
            functools.partial(_decode_greedy, blank, merge_repeated),
            [x, lengths],
            [((batch, time), "int32")],
            name="ctc_decode",
        )
        frames = Tensor.arange(time) < lengths.reshape(batch, 1)
        scores = -frames.where(x.max(-1), 0).sum(1, keepdim=True)
        return paths.unsqueeze(0), scores
    if strategy == "beam_search":
        return tuple(
            host_call(
                functools.partial(_decode_beams, blank, beam_width, top_paths),
                [x, lengths],
                [
                    ((top_paths, batch, time), "int32"),
                    ((batch, top_paths), dtype),
                ],
                name="ctc_decode",
            )
        )
    raise ValueError(
        f"Invalid strategy {strategy}. Supported values are "
        "'greedy' and 'beam_search'."
    )


def _decode_greedy(blank, merge_repeated, x, lengths):
    path = x.argmax(-1).astype("int32")
    dropped = np.arange(x.shape[1]) >= lengths[:, None]
    path = np.where(dropped, blank, path)
    dropped = path == blank
    if merge_repeated:
        dropped[:, 1:] |= path[:, 1:] == path[:, :-1]
    path = np.where(dropped, -1, path)
    order = np.argsort(dropped, axis=1, kind="stable")
    return np.take_along_axis(path, order, 1)


def _decode_beams(blank, beam_width, top_paths, x, lengths):
    batch, time, _ = x.shape
    log_prob = _log_softmax(x)
    paths = np.full((top_paths, batch, time), -1, "int32")
    scores = np.full((batch, top_paths), -np.inf)
    for b in range(batch):
        beams = _Beams(blank, beam_width, time)
        for frame in log_prob[b, : max(lengths[b], 1)]:
            beams.read(frame)
        found = beams.paths[:top_paths]
        paths[: len(found), b] = found
        scores[b, : len(found)] = beams.score()[:top_paths]
    return paths, scores


class _Beams:
    """The likeliest label sequences so far (Graves, 2012), best first.

    Attributes:
        paths: Labels of each sequence, -1 past its end, `(beams, time)`.
        sizes: Number of labels of each, `(beams,)`.
        label_score: Log-probability that the last frame was its last label.
        blank_score: Log-probability that the last frame was blank.
    """

    def __init__(self, blank, width, time):
        self.blank = blank
        self.width = width
        self.paths = np.full((1, time), -1, "int32")
        self.sizes = np.zeros(1, int)
        self.label_score = np.full(1, -np.inf)
        self.blank_score = np.zeros(1)

    def score(self):
        return np.logaddexp(self.label_score, self.blank_score)

    def read(self, frame):
        """Extends every sequence by every class; keeps the best `width`."""
        count = len(self.paths)
        rows = np.arange(count)
        score = self.score()
        last = self.paths[rows, self.sizes - 1]
        ended = rows[self.sizes > 0]
        stay = np.full(count, -np.inf)
        stay[ended] = (self.label_score + frame[last])[ended]
        blank = score + frame[self.blank]
        # A label repeats only across a blank.
        longer = score[:, None] + frame
        longer[ended, last[ended]] = (self.blank_score + frame[last])[ended]
        longer[:, self.blank] = -np.inf
        # A sequence and one label more may make another of the sequences.
        number = {
            path[:size].tobytes(): i
            for i, (path, size) in enumerate(zip(self.paths, self.sizes))
        }
        for i in ended:
            parent = number.get(self.paths[i, : self.sizes[i] - 1].tobytes())
            if parent is not None:
                stay[i] = np.logaddexp(stay[i], longer[parent, last[i]])
                longer[parent, last[i]] = -np.inf
        total = np.concatenate([np.logaddexp(stay, blank), longer.ravel()])
        kept = _at_least_kth(total, self.width)
        parents, labels = np.divmod(kept - count, len(frame))
        grown = kept >= count
        parents = np.where(grown, parents, kept)
        paths = self.paths[parents]
        sizes = self.sizes[parents]
        paths[grown, sizes[grown]] = labels[grown]
        order = _ranking(total[kept], paths)[: self.width]
        kept, parents, grown = kept[order], parents[order], grown[order]
        self.paths = paths[order]
        self.sizes = sizes[order] + grown
        self.label_score = np.where(grown, total[kept], stay[parents])
        self.blank_score = np.where(grown, -np.inf, blank[parents])


def _at_least_kth(score, k):
    """Returns where the `k` largest are, ties included, and no -inf."""
    kth = np.partition(score, -k)[-k] if len(score) > k else -np.inf
    return np.nonzero((score >= kth) & (score > -np.inf))[0]


def _ranking(score, paths):
    """Orders from the best down; of equals, the smaller labels first.

    A longer sequence goes before its own beginning, as in the other backends.
    """
    past_end = np.iinfo("int32").max
    labels = np.where(paths < 0, past_end, paths)
    return np.lexsort([*labels.T[::-1], -score])
