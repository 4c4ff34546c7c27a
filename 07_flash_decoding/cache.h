/* cache.h - the 8-bit K/V cache of --kv-cache e4m3: K and V as e4m3, times one scale for each of their heads.
 *
 * Decoding reads K and V once for each new token, and writes them once for ever. A model keeps them in 8 bits, and fills the
 * cache token by token as it goes; here the whole cache is filled before the timed part starts.
 */
#ifndef FA_CACHE_H
#define FA_CACHE_H

#include "../common/stage.h"

#ifdef __cplusplus
extern "C" {
#endif

/* split_k's workspace. The cache is there only with --kv-cache e4m3. */
enum { PARTIAL_O, PARTIAL_LSE, TICKETS, CACHE_K, CACHE_V, CACHE_SCALES, CACHE_LARGEST, DECODE_BUFFERS };

/* Fills in the buffers from CACHE_K on. */
void cache_plan(const Problem *p, Buffer *workspace);

/* Variant.prepare and the like: cache.cu. */
int cache_wanted(const Problem *p);
Launcher cache_fill;
PreparedValues cache_prepared_values;

#ifdef __cplusplus
}
#endif
#endif
