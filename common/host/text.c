/* text.c - see text.h. */
#define _DEFAULT_SOURCE /* TIOCGWINSZ */
#include "text.h"

#include "memory.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { HANGING = 11 };       /* a line that goes on does so this far to the right */
enum { FEWEST_PLACES = 40 }; /* a narrower terminal breaks the lines itself */

int line_places(void) {
    struct winsize terminal;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &terminal) != 0 || terminal.ws_col == 0 || terminal.ws_col > LINE_PLACES)
        return LINE_PLACES;
    return terminal.ws_col > FEWEST_PLACES ? terminal.ws_col : FEWEST_PLACES;
}

/* Breaks the line at spaces: a word is printed whole, however long. */
static void put_line(const char *line, int hanging) {
    int indent = 0;
    for (size_t room = (size_t)line_places(); strlen(line) > room; room = (size_t)(line_places() - hanging)) {
        const char *end = line + room;
        while (end > line && *end != ' ')
            end--;
        if (end == line)
            break;
        printf("%*s%.*s\n", indent, "", (int)(end - line), line);
        line = end + 1;
        indent = hanging;
    }
    printf("%*s%s\n", indent, "", line);
}

void append(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(arguments);
}

void print_text(const char *format, ...) {
    static char *text; /* since the last newline, as long as it may be */
    static size_t size, used;
    va_list arguments, measured;
    va_start(arguments, format);
    va_copy(measured, arguments);
    size_t needed = used + (size_t)vsnprintf(NULL, 0, format, measured) + 1;
    if (needed > size)
        text = host_resize(text, size = 2 * needed, 1);
    vsnprintf(text + used, size - used, format, arguments);
    va_end(measured);
    va_end(arguments);
    char *line = text;
    for (char *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        put_line(line, HANGING);
    }
    used = strlen(line);
    memmove(text, line, used + 1);
}

void print_hanging(int indent, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    put_line(text, indent);
}

void print_number(Cell cell, double value, const char *unit) {
    if (isfinite(value))
        snprintf(cell, sizeof(Cell), "%.*f%s", value < 0.1 ? 4 : value < 10 ? 2 : value < 100 ? 1 : 0, value, unit);
    else
        strcpy(cell, "-");
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
    else if (bytes < 0x1p10)
        snprintf(cell, sizeof(Cell), "%.0f byte%s", bytes, bytes == 1 ? "" : "s");
    else if (bytes < 0x1p20)
        print_number(cell, bytes / 0x1p10, " KiB");
    else if (bytes < 0x1p30)
        print_number(cell, bytes / 0x1p20, " MiB");
    else
        print_number(cell, bytes / 0x1p30, " GiB");
}
