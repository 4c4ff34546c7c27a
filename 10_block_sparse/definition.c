/* definition.c - see definition.h. Written apart from blocks.c and block_mask.h, and not for speed. */
#include "definition.h"

#include "../common/host/random.h"

#include <stdlib.h>
#include <string.h>

static int keeps(const Blocks *blocks, int pos, int row, int key) {
    const DefinedMask *m = (const DefinedMask *)blocks;
    const int row_block = row >> 7, key_block = key >> 7;
    const int is_near = key <= pos && pos - key < (int)m->last; /* of window and sink the last number is W */
    switch (m->kind) {
    case 'w': return is_near;
    case 's': return is_near || (key <= pos && key < (int)m->first);
    case 't': return key_block % (int)m->first == 0 || (pos >> 7) == key_block; /* a pos below 0 is in no block */
    case 'r': return 100 * random_uniform(m->last, row_block, key_block) < m->first;
    case 'f': return blocks->mask.kept[(size_t)row_block * m->key_blocks + key_block];
    default: return pos >= 0 && m->document[pos] == m->document[key];
    }
}

void define_mask(DefinedMask *m, int *document, const Problem *p) {
    const char *text = m->blocks.text;
    char *at = strchr(text, ':') + 1;
    m->blocks.defines = keeps;
    m->kind = strncmp(text, "st", 2) == 0 ? 't' : *text;
    m->key_blocks = (p->seqlen_k + 127) >> 7;
    m->document = document;
    if (m->kind == 'd') {
        for (int key = 0, number = 0; key < p->seqlen_k; at++, number++)
            for (long left = strtol(at, &at, 10); left > 0; left--)
                document[key++] = number;
    } else if (m->kind != 'f') {
        const char *second = strchr(at, ':');
        m->first = strtod(at, NULL);
        m->last = strtoull(second ? second + 1 : at, NULL, 10);
    }
}
