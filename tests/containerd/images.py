# SPDX-License-Identifier: Apache-2.0
"""The images that contrib/setup made, and variations of them that differ in their environment."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

MEDIA = "application/vnd.oci.image"


@attrs.frozen(kw_only=True)
class Image:
    """An OCI archive with one image of one layer."""

    reference: str
    archive: Path
    layer: Mapping[str, Any]
    """The layer's digest and size."""
    config: Mapping[str, Any]

    def unpack(self, root: Path) -> None:
        """Put its files below a directory that is there, with their owners and modes."""
        name = self.layer["digest"].removeprefix("sha256:")
        with tarfile.open(self.archive) as archive:
            layer = archive.extractfile(f"blobs/sha256/{name}")
            assert layer is not None
            with tarfile.open(fileobj=layer) as files:
                # Debian 12's Python knows no filters, and needs none; others want one said.
                files.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
                files.extractall(root, numeric_owner=True)


@attrs.frozen(kw_only=True)
class Library:
    """Images by name, and the host's own copy of the probe."""

    probe: Path
    images: Mapping[str, Image]

    def __getitem__(self, name: str) -> Image:
        if name not in self.images:
            raise KeyError(f"no image {name!r}: there are {', '.join(self.images)}")
        return self.images[name]

    def derive(
        self,
        name: str,
        base: str,
        env: Sequence[str],
        labels: Mapping[str, str],
        directory: Path,
        *,
        files: Mapping[str, bytes | str] = {},
    ) -> "Library":
        """Add an image with the files of another, some more, and an environment of its own.

        Of `files` a text is where a link leads.
        """
        parent = self[base]
        settings = dict(parent.config["config"])
        settings["Env"] = [*settings["Env"], *env]
        settings["Labels"] = dict(labels)
        config = {**parent.config, "config": settings}
        described = parent.layer
        reference = f"{parent.reference.rpartition('/')[0]}/{name}:1"
        archive = directory / f"{name}.tar"
        with tarfile.open(parent.archive) as source:
            digest = parent.layer["digest"].removeprefix("sha256:")
            member = source.extractfile(f"blobs/sha256/{digest}")
            assert member is not None
            layer = with_files(member.read(), files)
        if files:
            digest = f"sha256:{hashlib.sha256(layer).hexdigest()}"
            config["rootfs"] = {"type": "layers", "diff_ids": [digest]}
            described = {"digest": digest, "size": len(layer)}
        write(archive, reference, config, layer)
        image = Image(reference=reference, archive=archive, layer=described, config=config)
        return attrs.evolve(self, images={**self.images, name: image})


def with_files(layer: bytes, files: Mapping[str, bytes | str]) -> bytes:
    """Add files and links to a layer; the directories they need are made by whoever unpacks it."""
    out = io.BytesIO(layer)
    with tarfile.open(fileobj=out, mode="a", format=tarfile.PAX_FORMAT) as tar:
        for path, content in files.items():
            member = tarfile.TarInfo(f".{path}")
            member.mode = 0o755
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(b"" if isinstance(content, str) else content))
    return out.getvalue()


def load(cache: Path) -> Library:
    """Read what contrib/setup recorded below its cache directory."""
    document = json.loads((cache / "images/images.json").read_text(encoding="utf-8"))
    images = {
        name: Image(
            reference=record["reference"],
            archive=Path(record["archive"]),
            layer=record["layer"],
            config=record["config"],
        )
        for name, record in document["images"].items()
    }
    return Library(probe=cache / "probe/probe", images=images)


def write(archive: Path, reference: str, config: Mapping[str, Any], layer: bytes) -> None:
    """Write an OCI image layout with one image into a tar."""
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        return {"mediaType": f"{MEDIA}.{kind}", "digest": f"sha256:{digest}", "size": len(data)}

    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{MEDIA}.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": [blob("layer.v1.tar", layer)],
    }
    entry = blob("manifest.v1+json", json.dumps(manifest).encode())
    entry["annotations"] = {"io.containerd.image.name": reference}
    blobs["oci-layout"] = b'{"imageLayoutVersion": "1.0.0"}'
    blobs["index.json"] = json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode()
    with tarfile.open(archive, "w") as tar:
        for name, data in blobs.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
