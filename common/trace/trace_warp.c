/* trace_warp.c - from the accesses of single lanes to the requests of warps, and what those cost.
 *
 * On a GPU the 32 lanes of a warp execute a load together: it is one request, and its cost depends on all 32 addresses. Here
 * lanes run one after another. So each lane's access is filed under (warp, site, how many times this lane has passed this
 * site since the warp's last collective), and at the next collective, where the lanes meet, what is filed under one key is
 * one request. That is exact while lanes that execute a line execute it equally often, apart from those that left earlier.
 */
#include "trace_internal.h"

#include "../host/memory.h"

#include <stdlib.h>

enum { SECTOR = 32, BANKS = 32, WORD = 4 };

void warp_access(Recorder *r, int warp, int lane, int site, uintptr_t address, unsigned bytes) {
    WarpLog *w = &r->warps[warp];
    SiteLog *log = w->sites[site];
    if (!log)
        log = w->sites[site] = host_alloc(1, sizeof *log);
    if (log->count == 0)
        w->touched[w->touched_count++] = (uint16_t)site;

    unsigned visit = log->visits[lane]++;
    if (visit == log->count) { /* the first lane to come here this often */
        if (log->count == log->capacity) {
            log->capacity = log->capacity ? 2 * log->capacity : 4;
            log->requests = host_resize(log->requests, log->capacity, sizeof *log->requests);
        }
        log->requests[log->count++] = (Request){.bytes = bytes};
    }
    Request *request = &log->requests[visit];
    request->lanes |= 1u << lane;
    request->address[lane] = address;
}

/* ---- device memory: sectors ---- */

/* The addresses of the request in ascending order; returns how many. Lanes mostly come sorted: insertion sort. */
static int sorted_addresses(const Request *r, uintptr_t *sorted) {
    int count = 0;
    for (unsigned lanes = r->lanes; lanes; lanes &= lanes - 1) {
        uintptr_t address = r->address[__builtin_ctz(lanes)];
        int i = count++;
        for (; i > 0 && sorted[i - 1] > address; i--)
            sorted[i] = sorted[i - 1];
        sorted[i] = address;
    }
    return count;
}

/* Sectors that the lanes touch, against the fewest that as many different bytes would fit into. */
static void count_sectors(const Request *r, SiteCount *c) {
    uintptr_t sorted[SIMT_WARP], next_sector = 0, next_byte = 0;
    int count = sorted_addresses(r, sorted);
    size_t sectors = 0, bytes = 0;
    for (int i = 0; i < count; i++) {
        uintptr_t first = sorted[i] / SECTOR, last = (sorted[i] + r->bytes - 1) / SECTOR, end = sorted[i] + r->bytes;
        if (last >= next_sector) {
            sectors += last - (first > next_sector ? first : next_sector) + 1;
            next_sector = last + 1;
        }
        if (end > next_byte) {
            bytes += end - (sorted[i] > next_byte ? sorted[i] : next_byte);
            next_byte = end;
        }
    }
    c->cost += sectors;
    c->ideal += (bytes + SECTOR - 1) / SECTOR;
}

/* ---- shared memory: wavefronts ---- */

/* Shared memory is 32 banks, each a word of 4 bytes wide; word i lies in bank i % 32. In one wavefront each bank delivers
 * one word, to as many lanes as want it. Lanes with up to 4 bytes each go together; with 8 bytes, two halves of the warp go
 * one after the other, with 16 four quarters: so 8 lanes of 16 bytes are 128 bytes, all banks. What is left is conflicts: of
 * such a group of lanes, the bank with the most different words decides. ldmatrix reads eight rows of 16 bytes a matrix and
 * is such a 16-byte access. */
static unsigned group_wavefronts(const Request *r, unsigned lanes) {
    uintptr_t words[BANKS][SIMT_WARP]; /* different ones, by bank */
    unsigned count[BANKS] = {0}, most = 0;
    for (; lanes; lanes &= lanes - 1) {
        uintptr_t address = r->address[__builtin_ctz(lanes)];
        for (uintptr_t word = address / WORD; word <= (address + r->bytes - 1) / WORD; word++) {
            unsigned bank = word % BANKS, i = 0;
            while (i < count[bank] && words[bank][i] != word)
                i++;
            if (i == count[bank] && i < SIMT_WARP)
                words[bank][count[bank]++] = word;
            if (count[bank] > most)
                most = count[bank];
        }
    }
    return most;
}

static void count_wavefronts(const Request *r, SiteCount *c) {
    int group = r->bytes <= 4 ? 32 : r->bytes == 8 ? 16 : 8;
    unsigned mask = group == 32 ? SIMT_FULL_WARP : (1u << group) - 1;
    for (int first = 0; first < SIMT_WARP; first += group) {
        unsigned lanes = r->lanes & mask << first;
        if (!lanes)
            continue;
        c->cost += group_wavefronts(r, lanes);
        c->ideal++;
    }
}

/* ---- at a collective ---- */

void warp_flush(Recorder *r, int warp, int first) {
    WarpLog *w = &r->warps[warp];
    for (int i = first; i < w->touched_count; i++) {
        int site = w->touched[i];
        SiteLog *log = w->sites[site];
        SiteCount *c = &trace_launch.sites[site];
        int shared = trace_sites[site].tensor == SHARED_TENSOR;
        uint64_t before = c->cost;
        for (unsigned visit = 0; visit < log->count; visit++) {
            const Request *request = &log->requests[visit];
            c->requests++;
            c->bytes += (uint64_t)__builtin_popcount(request->lanes) * request->bytes;
            if (shared)
                count_wavefronts(request, c);
            else
                count_sectors(request, c);
        }
        if (shared)
            clock_wavefronts(r, warp, c->cost - before);
        for (int lane = 0; lane < SIMT_WARP; lane++) {
            c->approximate |= log->visits[lane] != 0 && log->visits[lane] != log->count;
            log->visits[lane] = 0;
        }
        log->count = 0;
    }
    w->touched_count = first;
}
