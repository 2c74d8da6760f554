"""Leaves out the tests of Keras' other backends, and says so once."""

OTHER_BACKENDS = ("jax", "numpy", "openvino", "tensorflow", "torch")


def pytest_ignore_collect(collection_path, config):
    folder = config.rootpath / "keras" / "src" / "backend"
    for name in OTHER_BACKENDS:
        if collection_path.is_relative_to(folder / name):
            return True
    return None


def pytest_report_header():
    return (
        "not run: the tests of other backends, keras/src/backend/{"
        + ",".join(OTHER_BACKENDS)
        + "}"
    )
