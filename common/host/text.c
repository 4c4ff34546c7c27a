/* text.c - see text.h. */
#include "text.h"

#include <stdio.h>
#include <string.h>

void print_number(Cell cell, double value, const char *unit) {
    snprintf(cell, sizeof(Cell), "%.*f%s", value < 0.1 ? 4 : value < 10 ? 2 : value < 100 ? 1 : 0, value, unit);
}

void print_time(Cell cell, double ms) {
    if (ms < 1)
        print_number(cell, ms * 1e3, " us");
    else if (ms < 1e3)
        print_number(cell, ms, " ms");
    else
        print_number(cell, ms / 1e3, " s");
}

void print_bytes(Cell cell, double bytes) {
    if (bytes == 0)
        strcpy(cell, "0");
    else if (bytes < 0x1p20)
        print_number(cell, bytes / 0x1p10, " KiB");
    else if (bytes < 0x1p30)
        print_number(cell, bytes / 0x1p20, " MiB");
    else
        print_number(cell, bytes / 0x1p30, " GiB");
}

int display_width(const char *text) {
    int width = 0;
    for (; *text; text++)
        width += (*text & 0xc0) != 0x80; /* bytes of a character after its first look like 10xxxxxx */
    return width;
}

/* RFC 3629: a first byte says how many follow, each 10xxxxxx; the first of these is bounded so that no character has two forms, none
 * is half of a UTF-16 pair, and none passes U+10FFFF. */
int utf8_length(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    int least = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80, most = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    for (int i = 1; i < length; i++, least = 0x80, most = 0xbf)
        if (s[i] < least || s[i] > most)
            return 0;
    return length;
}
