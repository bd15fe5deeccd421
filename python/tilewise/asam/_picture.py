"""Which blocks heads attend, as a picture."""

from torch import Tensor

SIDE, GAP, HEAD_HEIGHT, NAME_WIDTH = 96, 12, 18, 90

# name -> (pattern, blocks bool (query blocks, key blocks)) of each head
Pictures = dict[str, list[tuple[str, Tensor]]]


def blocks_svg(pictures: Pictures) -> str:
    """A row of squares for each input, one square a head: dark where the blocks attend."""
    heads = max((len(row) for row in pictures.values()), default=0)
    width = NAME_WIDTH + heads * (SIDE + GAP)
    height = len(pictures) * (SIDE + GAP + HEAD_HEIGHT) + GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for n, (name, row) in enumerate(pictures.items()):
        top = GAP + n * (SIDE + GAP + HEAD_HEIGHT)
        parts.append(f'<text x="6" y="{top + HEAD_HEIGHT + SIDE // 2}">{name}</text>')
        for head, (pattern, blocks) in enumerate(row):
            left = NAME_WIDTH + head * (SIDE + GAP)
            parts.append(f'<text x="{left}" y="{top + 11}">{pattern}</text>')
            parts += _square(blocks, left, top + HEAD_HEIGHT)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _square(blocks: Tensor, left: int, top: int) -> list[str]:
    rows, columns = blocks.shape
    tall, wide = SIDE / rows, SIDE / columns
    parts = [f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" fill="#e8ecf2"/>']
    # A path of runs, so that a picture stays small.
    path = ""
    for i, line in enumerate(blocks.tolist()):
        j = 0
        while j < columns:
            end = j
            while end < columns and line[end]:
                end += 1
            if end > j:
                x, y = left + j * wide, top + i * tall
                path += (
                    f"M{x:.4g} {y:.4g}h{(end - j) * wide:.4g}v{tall:.4g}h-{(end - j) * wide:.4g}z"
                )
            j = max(end, j + 1)
    return [*parts, f'<path d="{path}" fill="#1f4e8c"/>']
