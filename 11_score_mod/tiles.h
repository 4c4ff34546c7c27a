/* tiles.h - what the formulas (traffic.c) are told by the kernels: the tiles that are launched on this device. */
#ifndef FA_SCORE_TILES_H
#define FA_SCORE_TILES_H

#include "../common/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queries and keys of a tile. */
typedef struct {
    int Br, Bc;
} TileShape;
TileShape score_fma_tile(const Problem *p), score_fused_tile(const Problem *p); /* fma.cu, fused.cu */

#ifdef __cplusplus
}
#endif
#endif
