"""DAVIS: how well frozen features carry the first frame's object masks through a video.

The `paper` profile is DINO's protocol (`eval_video_segmentation.py`, as the StoP paper uses it); `clean` is the same
protocol without its accidents. D1 to D13 are the defects known of that program; docs/evaluation.md tells each with its test.

| | | paper | clean |
|---|---|---|---|
| D1 | image normalisation | red std .228, a slip of the pen | ImageNet's .229 |
| | image resize | bilinear, aliasing (as OpenCV) | bicubic, antialiased |
| D3 | long side | floored to a multiple of 4 tokens | rounded to the nearest token |
| D2 | first labels | the pixel in each token's centre, small objects get lost | share of each token's area |
| D4 | upsampled labels | stretched per object to 0..1: faded objects come back | as they are |
| | finest size of the decision | the resized frame, then nearest to the original | the original frame |
| D13 | fixed positions on larger grids | the parameter `positions` | the same |

Mended in both, because no right result depends on it: objects are those of the full first mask (D2), one box of whole patches of
any size for image, labels and prediction (D3), no 0/0 (D4, D11), one size rule for square frames (D5), names from the frames (D6,
D10), errors that name the file (D7), void as background (D8), a neighbourhood made once per grid (D9), versions on record (D12).

The scorer (`scores.py`, `score.py`) has the official tool's definitions and none of its faults: removed numpy names (E1), decay that is
no number from 256 frames on (E2), scores of an earlier run (E3), exit status 0 after a fault (E4), 0/255 read as 255 objects (E5),
no word on a folder too high (E6) or on the truth scored against itself (E7), a crash where masks are missing (E9). That F's
tolerance follows the frame and not the object (E8) is part of the definition.
"""
