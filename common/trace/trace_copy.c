/* trace_copy.c - which bytes of device memory are copies of others, as device_pull made them: a shard's rows are rows of Q, K or V.
 *
 * A shard of O is copied to O only after all launches; so that its rows are known in time, that copy is announced.
 * Only the page of `make watch-<stage>` asks. What the trace counts, it counts by allocations.
 */
#include "trace_internal.h"

#include "../host/memory.h"

#include <string.h>

/* Bytes from `begin` to `end` equal those from `original` on, which are no copy. */
typedef struct {
    const char *begin, *end, *original;
} Copy;
static Copy *copies; /* in the order of addresses, none overlapping another */
static int copy_count;
static int announced; /* what is copied now will be copied once more, and its rows are those of where it goes */

void copy_clear(void) { copy_count = 0; }
void trace_announce(int begins) { announced = begins; }

/* The first that does not end before this byte. */
static int copy_at(const char *byte) {
    int first = 0, last = copy_count;
    while (first < last) {
        int middle = (first + last) / 2;
        if (copies[middle].end <= byte)
            first = middle + 1;
        else
            last = middle;
    }
    return first;
}

/* Makes room for one at this place. */
static Copy *insert(int place) {
    (void)APPEND(copies, copy_count);
    memmove(copies + place + 1, copies + place, (size_t)(copy_count - 1 - place) * sizeof *copies);
    return &copies[place];
}

/* These bytes are overwritten: of a copy that overlaps them its beginning, its end, or both stay. */
static void forget(const char *begin, const char *end) {
    for (int i = copy_at(begin); i < copy_count && copies[i].begin < end;) {
        const Copy c = copies[i];
        if (c.begin < begin && c.end > end)
            *insert(i) = c;
        if (c.begin < begin)
            copies[i++].end = begin;
        if (c.end > end)
            copies[i++] = (Copy){end, c.end, c.original + (end - c.begin)};
        if (c.begin >= begin && c.end <= end)
            memmove(copies + i, copies + i + 1, (size_t)(--copy_count - i) * sizeof *copies);
    }
}

const char *copy_original(const char *byte) {
    const int i = copy_at(byte);
    return i < copy_count && copies[i].begin <= byte ? copies[i].original + (byte - copies[i].begin) : NULL;
}

void copy_made(const void *to, const void *from, size_t bytes) {
    const char *begin = announced ? from : to, *source = announced ? to : from, *end = begin + bytes;
    forget(begin, end);
    while (begin < end) { /* the source may have pieces, each a copy of another place */
        const char *original = copy_original(source), *stop = source + (end - begin);
        const int i = copy_at(source);
        if (i < copy_count && (original ? copies[i].end : copies[i].begin) < stop)
            stop = original ? copies[i].end : copies[i].begin;
        *insert(copy_at(begin)) = (Copy){begin, begin + (stop - source), original ? original : source};
        begin += stop - source, source = stop;
    }
}
