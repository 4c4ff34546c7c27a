/* blocks.c - reads --blocks SPEC into a block mask (problem.h). */
#include "definition.h"

#include "../common/block_mask.h"
#include "../common/host/errors.h"
#include "../common/host/memory.h"
#include "../common/host/npy.h"
#include "../common/host/random.h"
#include "../common/stage.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* SPEC while it is read. */
typedef struct {
    const char *option, *text, *at;
} Spec;

/* A number in plain digits, which ends where SPEC does or at `behind`; then it goes on after that. */
static uint64_t read_number(Spec *s, const char *what, uint64_t least, uint64_t most, char behind) {
    char *end;
    errno = 0;
    uint64_t value = strtoull(s->at, &end, 10);
    if (!isdigit((unsigned char)*s->at) || errno || value < least || value > most || *end != behind)
        cannot_run("--%s %s: choose a whole number from %llu to %llu for %s", s->option, s->text,
                   (unsigned long long)least, (unsigned long long)most, what);
    s->at = end + (behind != '\0');
    return value;
}
static int read_count(Spec *s, const char *what, char behind) {
    return (int)read_number(s, what, 1, MAX_SEQLEN, behind);
}

static void read_documents(Spec *s, const Problem *p, int *documents) {
    int first = 0;
    for (char behind = '+'; behind;) {
        behind = strchr(s->at, '+') ? '+' : '\0';
        int length = (int)read_number(s, "each length", 0, MAX_SEQLEN, behind), rest = p->seqlen_k - first;
        if (length > rest || (!behind && length < rest))
            cannot_run("--%s %s: choose lengths that add up to %d, the number of keys", s->option, s->text,
                       p->seqlen_k);
        for (int key = first; key < first + length; key++)
            documents[2 * key] = first, documents[2 * key + 1] = first + length;
        first += length;
    }
}

static void read_random(Spec *s, const Problem *p, unsigned char *kept) {
    char *end;
    double percent = strtod(s->at, &end);
    if (!isdigit((unsigned char)*s->at) || s->at[1] == 'x' || *end != ':' || !(percent >= 0 && percent <= 100))
        cannot_run("--%s %s: choose a number from 0 to 100 for PERCENT, and SEED after a colon", s->option, s->text);
    s->at = end + 1;
    uint64_t seed = read_number(s, "SEED", 0, UINT64_MAX, '\0');
    int key_blocks = (p->seqlen_k + MASK_BLOCK - 1) / MASK_BLOCK;
    for (size_t i = 0; i < mask_blocks(p); i++)
        kept[i] = 100 * random_uniform(seed, (uint32_t)(i / key_blocks), (uint32_t)(i % key_blocks)) < percent;
}

static void read_table(Spec *s, const Problem *p, unsigned char *kept) {
    HostArray table = npy_read_table(s->option, s->at);
    size_t query_blocks = (p->seqlen_q + MASK_BLOCK - 1) / MASK_BLOCK, key_blocks = mask_blocks(p) / query_blocks;
    if (table.shape[0] != query_blocks || table.shape[1] != key_blocks)
        cannot_run("--%s: %s: has %zux%zu blocks, but it must have %zux%zu, of %d queries and keys each", s->option,
                   s->at, table.shape[0], table.shape[1], query_blocks, key_blocks, MASK_BLOCK);
    for (size_t i = 0; i < array_count(&table); i++)
        kept[i] = ((const char *)table.data)[i] != 0;
    free(table.data);
}

/* Whether SPEC is of this kind: it then goes on after the colon. */
static int is_kind(Spec *s, const char *kind) {
    size_t length = strlen(kind);
    int is = strncmp(s->text, kind, length) == 0 && s->text[length] == ':';
    s->at = s->text + length + 1;
    return is;
}

/* The tables and the text stand behind the mask. */
extern MaskReader blocks_read;
const Blocks *blocks_read(const char *option, const char *text, const Problem *p) {
    if (strcmp(text, "all") == 0)
        return NULL;
    size_t documents = 0, table = 0;
    Spec s = {option, text, text};
    if (is_kind(&s, "documents"))
        documents = document_bytes(p);
    else if (is_kind(&s, "random") || is_kind(&s, "file"))
        table = mask_blocks(p);
    const size_t numbers = documents / 2; /* of each key's document, for the definition */
    DefinedMask *defined = host_alloc(1, sizeof *defined + documents + table + numbers + strlen(text) + 1);
    Blocks *blocks = &defined->blocks;
    BlockMask *mask = &blocks->mask;
    char *behind = (char *)(defined + 1);
    blocks->text = strcpy(behind + documents + table + numbers, text);
    mask->documents = documents ? (int *)behind : NULL;
    mask->kept = table ? (unsigned char *)behind : NULL;
    if (is_kind(&s, "window")) {
        mask->window = read_count(&s, "W", '\0');
    } else if (is_kind(&s, "sink")) {
        mask->sink = read_count(&s, "S, and W after a colon", ':');
        mask->window = read_count(&s, "W", '\0');
    } else if (is_kind(&s, "documents")) {
        read_documents(&s, p, (int *)behind);
    } else if (is_kind(&s, "strided")) {
        mask->stride = read_count(&s, "K", '\0');
    } else if (is_kind(&s, "random")) {
        read_random(&s, p, (unsigned char *)behind);
    } else if (is_kind(&s, "file")) {
        read_table(&s, p, (unsigned char *)behind);
    } else {
        cannot_run("--%s %s: choose all|window:W|sink:S:W|documents:A+B|strided:K|random:PERCENT:SEED|file:PATH",
                   option, text);
    }
    define_mask(defined, (int *)(behind + documents), p);
    return blocks;
}
