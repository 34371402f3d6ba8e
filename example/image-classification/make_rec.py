"""Pack a folder of images, one folder a class, into RecordIO files.

The files are packed as they are, PNG or JPEG, and decoded when they are read. PREFIX.classes.txt
gets the names of the classes, one a line, in the order of their numbers.
"""

import random
import sys
from pathlib import Path

try:
    from common import cli

    from mxloop import mx
    from mxloop.errors import ArgumentError, DataError
    from mxloop.validation import shown
except ImportError as error:
    print(f"error: {error}; README.md says what to install", file=sys.stderr)
    sys.exit(2)

ENDINGS = (".jpg", ".jpeg", ".png")


def parse(argv=None):
    parser = cli.Parser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="with a folder of PNG or JPEG files a class")
    parser.add_argument("prefix", help="writes PREFIX.rec, or PREFIX_train.rec and PREFIX_val.rec")
    parser.add_argument(
        "--val-share", type=cli.number(float, 0, 0.9), default=0, help="of each class, to validate"
    )
    parser.add_argument("--seed", type=cli.number(int, 0), default=0, help="of order and shares")
    return parser.parse_args(argv)


def main(args):
    found = images_by_class(args.folder)
    shuffled = random.Random(args.seed)
    train, validation = [], []
    for label, paths in enumerate(found.values()):
        shuffled.shuffle(paths)
        kept = round(len(paths) * args.val_share)
        validation += [(path, label) for path in paths[:kept]]
        train += [(path, label) for path in paths[kept:]]
    write_text(f"{args.prefix}.classes.txt", "".join(f"{name}\n" for name in found))
    parts = {"_train": train, "_val": validation} if args.val_share else {"": train}
    for name, images in parts.items():
        shuffled.shuffle(images)
        pack(f"{args.prefix}{name}.rec", images)
    return 0


def images_by_class(folder):
    """Return the paths of the images by the name of their folder, both in alphabetical order."""
    if not folder.is_dir():
        raise ArgumentError(f"there is no folder {shown(folder)}")
    classes = {
        inner.name: [path for path in sorted(inner.iterdir()) if path.suffix.lower() in ENDINGS]
        for inner in sorted(folder.iterdir())
        if inner.is_dir()
    }
    empty = [name for name, paths in classes.items() if not paths]
    if empty or len(classes) < 2:
        raise ArgumentError(
            f"{shown(folder)} needs two folders or more, with PNG or JPEG files in each, named as "
            f"their class; {f'{shown(empty[0])} has none' if empty else f'it has {len(classes)}'}"
        )
    return classes


def pack(path, images):
    """Write one record an image: its class, its number and its file."""
    if not images:
        raise ArgumentError(f"no image is left for {shown(path)}; choose another --val-share")
    try:
        record = mx.recordio.MXRecordIO(path, "w")
    except mx.base.MXNetError as error:
        raise DataError(f"cannot write {shown(path)}; is there such a folder?") from error
    for number, (image, label) in enumerate(images):
        data = image.read_bytes()
        check(image, data)
        record.write(mx.recordio.pack(mx.recordio.IRHeader(0, label, number, 0), data))
    record.close()
    print(f"wrote {path}: {len(images)} images")


def check(path, data):
    """Raise an error unless an image can be decoded: in training it would be too late."""
    try:
        mx.image.imdecode(data).wait_to_read()
    except (mx.base.MXNetError, ValueError) as error:
        raise DataError(f"{shown(path)} is no image that can be decoded; remove it") from error


def write_text(path, text):
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {shown(path)}: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(cli.run(main, parse()))
