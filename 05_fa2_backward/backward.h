/* backward.h - what the formulas (traffic.c) are told by the kernels: the tiles that are launched on this device. */
#ifndef FA_BACKWARD_H
#define FA_BACKWARD_H

#include "../common/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Queries and keys of a tile. */
typedef struct {
    int Br, Bc;
} TileShape;
TileShape two_pass_key_tile(const Problem *p), two_pass_query_tile(const Problem *p); /* two_pass.cu: its two kernels */
TileShape fma_tile(const Problem *p), atomic_tile(const Problem *p);                  /* fma.cu, atomic.cu */

#ifdef __cplusplus
}
#endif
#endif
