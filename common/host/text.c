/* text.c - see text.h. */
#define _POSIX_C_SOURCE 200809L
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { HANGING = 11 }; /* a line that goes on does so this far behind where it began */

/* As POSIX has it: the first of these that is set and not empty says. Whether that locale is installed does not matter here. */
static int locale_has_utf8(void) {
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"}, *locale = NULL;
    for (int i = 0; i < 3 && !(locale && *locale); i++)
        locale = getenv(names[i]);
    for (; locale && *locale; locale++)
        if (strncasecmp(locale, "utf-8", 5) == 0 || strncasecmp(locale, "utf8", 4) == 0)
            return 1;
    return 0;
}

/* All but the newline, with `·` and `×` replaced if need be: both are two bytes that begin with 0xc2 or 0xc3. */
static void put(const char *text, const char *end) {
    int utf8 = locale_has_utf8();
    for (; text < end; text++)
        if (!utf8 && (strncmp(text, "·", 2) == 0 || strncmp(text, "×", 2) == 0))
            putchar(*text++ == "·"[0] ? '-' : 'x');
        else
            putchar(*text);
}

/* Where the rest of a line begins if so many places are left: behind the last good space, or else behind the last one. */
static const char *next_part(const char *text, int places) {
    const char *good = NULL, *any = NULL;
    for (const char *c = text; *c && places >= 0; c++) {
        if (*c == ' ' && c > text) {
            any = c + 1;
            if (strchr(",; ", c[-1]) || (c > text + 1 && strncmp(c - 2, "·", 2) == 0))
                good = c + 1;
        }
        places -= (*c & 0xc0) != 0x80;
    }
    const char *part = good ? good : any;
    return part ? part + strspn(part, " ") : NULL;
}

static void put_line(const char *line) {
    int indent = (int)strspn(line, " "), places = LINE_PLACES - indent;
    printf("%*s", indent, "");
    line += indent;
    for (const char *rest; display_width(line) > places && (rest = next_part(line, places)); line = rest) {
        const char *end = rest;
        while (end[-1] == ' ')
            end--;
        put(line, end);
        printf("\n%*s", indent + HANGING, "");
        places = LINE_PLACES - indent - HANGING;
    }
    put(line, line + strlen(line));
    putchar('\n');
}

void print_text(const char *format, ...) {
    static char text[1 << 14]; /* what has been printed since the last newline */
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    char *line = text;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        put_line(line);
    }
    memmove(text, line, strlen(line) + 1);
}

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
