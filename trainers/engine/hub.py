"""An export on the Hugging Face hub. The token is the library's business: it is neither read into a setting nor kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class HubError(ValueError):
    """A name that the hub does not take, or an upload that it refused."""


def check_hub(name: str, setting: str) -> None:
    """Raise HubError, which names `setting`, where an upload to the repository `name` cannot begin."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise HubError(f"{setting}={name!r} is no name of a repository, which is USER/NAME: {error}") from None
    if huggingface_hub.constants.is_offline_mode():
        raise HubError(
            f"{setting}={name!r}: HF_HUB_OFFLINE is set, so that nothing can be uploaded; unset it, or leave it out"
        )
    if huggingface_hub.get_token() is None:
        raise HubError(f"{setting}={name!r}: the hub wants a token; `hf auth login` once, or set HF_TOKEN")


def push(folder: Path, name: str, files: Sequence[str]) -> str:
    """Upload these files of an export, in one commit; returns the address of the repository.

    One that is not there is made, and private: who wants it public says so on its page. Raises HubError with the hub's
    reason.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    hub = HfApi()
    try:
        made = hub.create_repo(name, private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=made.repo_id, folder_path=folder, allow_patterns=[*files], commit_message="MultiCSE export"
        )
    except (HfHubHTTPError, OSError) as error:
        raise HubError(f"the hub did not take {folder} as {name}: {error}") from error
    return str(made)
