/* text.h - lines and figures as people read them. */
#ifndef FA_TEXT_H
#define FA_TEXT_H

#include <stddef.h>

enum { LINE_PLACES = 120 }; /* a line takes at most; fewer if stdout is a terminal that has fewer columns: */
int line_places(void);

/* printf to stdout, for what people read. A longer line is broken at spaces. A line comes out as a whole, with its newline. */
__attribute__((format(printf, 1, 2))) void print_text(const char *format, ...);

/* The same for one whole line, without a newline at its end; what goes on below is indented by so many spaces. */
__attribute__((format(printf, 2, 3))) void print_hanging(int indent, const char *format, ...);

/* printf to the end of a text that has `size` bytes, as far as there is room. */
__attribute__((format(printf, 3, 4))) void append(char *text, size_t size, const char *format, ...);

typedef char Cell[64]; /* of a table */

/* Three digits or so, never an exponent, and the unit after them: "1.23 ms"; "-" for what is not known, NaN or infinity. */
void print_number(Cell cell, double value, const char *unit);
void print_time(Cell cell, double ms);     /* in us, ms or s */
void print_bytes(Cell cell, double bytes); /* in bytes, KiB, MiB or GiB; "0" for none */

#endif
