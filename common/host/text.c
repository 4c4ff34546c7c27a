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
