/* explain.c - what is printed below the table, and refused. */
#include "../common/host/text.h"
#include "../common/traffic.h"
#include "shards.h"

#include <stdio.h>

const char *devices_refuse(const Problem *p) {
    static char reason[96];
    snprintf(reason, sizeof reason, "cannot have --devices %d: there %s %d", devices_of(p),
             device_peers() == 1 ? "is" : "are", device_peers());
    return devices_of(p) > device_peers() ? reason : NULL;
}

/* Pairs of a chunk's queries and the keys that they see. */
static double chunk_pairs(const Problem *p, const int *key_lengths, int chunk) {
    Problem one = *p;
    double pairs = 0;
    one.batch = 1, one.seqlen_q = queries_of(p, chunk).count;
    for (int b = 0; b < p->batch; b++)
        pairs += visible_pairs(&one, (int[]){shard_keys_seen(p, key_length(p, key_lengths, b), WHOLE, chunk)});
    return pairs;
}

/* Below the table: what each device pulled in the last run, by formula and as the copies were counted, how long it
 * computed, and the efficiency T1 / (G TG). The CPU device's devices take turns: there the busiest one's time stands
 * for TG. */
void explain_devices(const Problem *p, const int *key_lengths, const Variant *v, double ms, LinkBytes *link, int rounds) {
    static double alone_ms; /* T1 */
    const int devices = devices_of(p);
    double busiest = 0;
    if (!v->devices) {
        alone_ms = ms;
        return;
    }
    for (int r = 0; r < devices; r++) {
        double predicted = 0, counted = 0, busy = 0, pairs = 0;
        Cell bytes;
        print_text("device %d   %s: pulls", r, v->name);
        for (int from = 0; from < devices; from++) {
            predicted += link(p, key_lengths, from, r);
            counted += from == r ? 0 : device_link_bytes(from, r);
            print_bytes(bytes, link(p, key_lengths, from, r));
            if (from != r)
                print_text(" %s from %d,", bytes, from);
        }
        for (int half = 0; half < HALVES; half++)
            pairs += chunk_pairs(p, key_lengths, chunk_of(p, r, half));
        for (int round = 0; round < rounds; round++)
            busy += device_between_ms(r, BEGIN + round, END + round);
        busiest = busy > busiest ? busy : busiest;
        print_bytes(bytes, counted);
        print_text(" %s counted%s; computes %.1f%% of all pairs in %.3g ms\n", bytes,
                   counted == predicted ? "" : ", WHICH IS NOT WHAT THE FORMULA SAYS",
                   100 * pairs / visible_pairs(p, key_lengths), busy);
    }
    const double together = device_properties()->is_cpu ? busiest : ms;
    if (alone_ms > 0)
        print_text("efficiency %s: %.0f%% of %d times one device, whose %.3g ms became %.3g\n", v->name,
                   100 * alone_ms / (devices * together), devices, alone_ms, together);
}
