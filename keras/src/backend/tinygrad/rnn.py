"""Recurrent loops over time."""

from tinygrad import Tensor
from tinygrad import dtypes

from keras.src import tree
from keras.src.backend.tinygrad.core import convert_to_tensor
from keras.src.backend.tinygrad.core import scan


def rnn(
    step_function,
    inputs,
    initial_states,
    go_backwards=False,
    mask=None,
    constants=None,
    unroll=False,
    input_length=None,
    time_major=False,
    zero_output_for_mask=False,
    return_all_outputs=True,
):
    """Iterates over the time dimension of `inputs`.

    Args:
        step_function: `step_function(input, states) -> (output, new_states)`
            for one time step; `input` and `output` lack the time axis.
        inputs: Tensor of shape `(samples, time, ...)`, or a structure of them.
        initial_states: List of state tensors, or of structures of them.
        go_backwards: Whether to iterate, and return outputs, from last to
            first.
        mask: Boolean tensor of shape `(samples, time)` or
            `(samples, time, 1)`. Where it is false a step keeps the states,
            and its output is the previous one (zeros before the first).
        constants: List of tensors passed to each step after the states.
        unroll: Whether to lay the steps out in the graph one by one.
        input_length: Sequence or tensor of shape `(samples,)` with the number
            of steps that count of each sample, an alternative to `mask`. An
            integer changes nothing: the time axis gives the number of steps.
        time_major: Whether inputs, mask and outputs have time first.
        zero_output_for_mask: Whether outputs of masked steps are zeros.
        return_all_outputs: Whether `outputs` holds all steps or the last one.

    Returns:
        `(last_output, outputs, new_states)`; `outputs` has shape
        `(samples, time, ...)`, with a time of 1 unless `return_all_outputs`.
    """
    inputs = tree.map_structure(convert_to_tensor, inputs)
    if not time_major:
        inputs = tree.map_structure(_swap_batch_and_time, inputs)
    steps = tree.flatten(inputs)[0].shape[0]
    if unroll and not steps:
        raise ValueError(
            "Unrolling requires a fixed number of timesteps, at least one. "
            f"Received: inputs with {steps} timesteps"
        )
    mask = _time_major_mask(mask, input_length, steps, time_major)
    states = tree.map_structure(convert_to_tensor, initial_states)
    constants = tuple(constants or ())

    def step(x, states):
        states = (*states, *constants) if constants else states
        output, new_states = step_function(x, states)
        return output, tree.pack_sequence_as(
            initial_states, tree.flatten(new_states)
        )

    if mask is None:

        def body(carry, x):
            output, new_states = step(x, carry)
            return new_states, output

        carry, xs = states, inputs
    else:

        def body(carry, x):
            x, keep = x
            previous, states = carry
            output, new_states = step(x, states)
            held = tree.map_structure(
                Tensor.zeros_like if zero_output_for_mask else _identity,
                previous,
            )
            output = _where(keep, output, held)
            return (output, _where(keep, new_states, states)), output

        first = tree.map_structure(lambda x: x[0], inputs)
        output, _ = step(first, states)
        carry = (tree.map_structure(Tensor.zeros_like, output), states)
        xs = (inputs, mask)

    carry, outputs = scan(
        body, carry, xs, reverse=go_backwards, unroll=steps if unroll else 1
    )
    if go_backwards:
        outputs = tree.map_structure(lambda x: x.flip(0), outputs)
    last_output = tree.map_structure(lambda x: x[-1], outputs)
    new_states = carry if mask is None else carry[1]
    if not return_all_outputs:
        outputs = tree.map_structure(lambda x: x[None], last_output)
    if not time_major:
        outputs = tree.map_structure(_swap_batch_and_time, outputs)
    return last_output, outputs, new_states


def _identity(x):
    return x


def _swap_batch_and_time(x):
    return x.transpose(0, 1)


def _time_major_mask(mask, input_length, steps, time_major):
    """Returns a boolean mask of shape `(time, samples, ...)`, or `None`."""
    if mask is None:
        if input_length is None or isinstance(input_length, int):
            return None
        lengths = convert_to_tensor(input_length, "int32")
        if lengths.ndim == 0:
            return None
        times = Tensor.arange(steps, dtype=dtypes.int32)
        return times[:, None] < lengths[None, :]
    mask = convert_to_tensor(mask, "bool")
    return mask if time_major else _swap_batch_and_time(mask)


def _where(keep, new, old):
    """Selects by sample between two structures of equal shapes."""

    def select(new, old):
        dims = keep.shape + (1,) * (new.ndim - keep.ndim)
        return keep.reshape(dims).where(new, old.cast(new.dtype))

    return tree.map_structure(select, new, old)


def cudnn_ok(*args, **kwargs):
    # A cuDNN question: `lstm` and `gru` below need no special hardware.
    return False


def lstm(*args, **kwargs):
    raise NotImplementedError


def gru(*args, **kwargs):
    raise NotImplementedError


def bidirectional_lstm(*args, **kwargs):
    raise NotImplementedError


def bidirectional_gru(*args, **kwargs):
    raise NotImplementedError
