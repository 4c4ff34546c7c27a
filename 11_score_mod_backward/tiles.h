/* tiles.h - what the formula (traffic.c) is told by the kernel: the tiles that are launched. */
#ifndef FA_SCORE_BACKWARD_TILES_H
#define FA_SCORE_BACKWARD_TILES_H

#include "../common/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queries and keys of a tile. */
typedef struct {
    int Br, Bc;
} TileShape;
TileShape score_backward_tile(const Problem *p); /* fma.cu */

#ifdef __cplusplus
}
#endif
#endif
