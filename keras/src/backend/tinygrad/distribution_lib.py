"""What `keras.distribution` asks of a backend that runs on one device."""

from tinygrad import Device


def list_devices(device_type=None):
    """Lists the devices that tinygrad has opened or can open by default.

    Args:
        device_type: `"cpu"`, `"gpu"` or `None`, which means the accelerator
            where there is one.

    Returns:
        List of strings such as `"gpu:0"`.
    """
    kind = device_type.lower() if device_type else None
    on_cpu = Device.DEFAULT.partition(":")[0] == "CPU"
    if kind is None:
        kind = "cpu" if on_cpu else "gpu"
    if kind == "cpu":
        return ["cpu:0"]
    if kind == "gpu" and not on_cpu:
        return ["gpu:0"]
    return []


def get_device_count(device_type=None):
    """Counts the devices that `list_devices` names."""
    return len(list_devices(device_type))


def distribute_tensor(tensor, layout):
    raise NotImplementedError(_not_supported("distribute_tensor"))


def distribute_variable(value, layout):
    raise NotImplementedError(_not_supported("distribute_variable"))


def distribute_data_input(per_process_batch, layout, batch_dim_name):
    raise NotImplementedError(_not_supported("distribute_data_input"))


def initialize(job_addresses, num_processes, process_id):
    raise NotImplementedError(_not_supported("initialize"))


def initialize_rng():
    """Nothing to do: one process draws from its own seed generators."""


def num_processes():
    return 1


def process_id():
    return 0


def _to_backend_mesh(device_mesh):
    raise NotImplementedError(_not_supported("DeviceMesh"))


def _to_backend_layout(tensor_layout):
    raise NotImplementedError(_not_supported("TensorLayout"))


def _not_supported(name):
    return (
        f"`{name}` is not implemented with the tinygrad backend: it runs on "
        "one device. Choose the device with the environment variable `DEV`, "
        "or with `keras.device`."
    )
