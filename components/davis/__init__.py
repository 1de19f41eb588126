"""DAVIS: how well frozen features carry the first frame's object masks through a video.

The `paper` profile is DINO's protocol (`eval_video_segmentation.py`, as the StoP paper uses it); `clean` is the same
protocol without its accidents. What differs:

| | paper | clean |
|---|---|---|
| image normalisation | red std .228, a slip of the pen | ImageNet's .229 |
| image resize | bilinear, aliasing (as OpenCV) | bicubic, antialiased |
| long side | floored to a multiple of 4 tokens | rounded to the nearest token |
| first labels | the pixel in each token's centre, small objects get lost | share of each token's area |
| upsampled labels | stretched per object to 0..1: faded objects come back | as they are |
| finest size of the decision | the resized frame, then nearest to the original | the original frame |

Mended in both, because no right result depends on it: void (255) is background, one size rule for square frames,
windows masked before the top k, file names from the frames, and sides that are multiples of any patch size.
"""
