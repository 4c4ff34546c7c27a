/* text.h - figures as people read them, and how wide a text is on a terminal. */
#ifndef FA_TEXT_H
#define FA_TEXT_H

#ifdef __cplusplus
extern "C" {
#endif

enum { LINE_PLACES = 120 }; /* a line takes at most */

/* printf to stdout, for what people read. A longer line is broken after a comma, a semicolon, a `·` or a gap; where the
 * locale has no UTF-8 a `·` is a - and a `×` an x. A line comes out as a whole, with its newline. */
__attribute__((format(printf, 1, 2))) void print_text(const char *format, ...);

typedef char Cell[64]; /* of a table */

/* Three digits or so, never an exponent, and the unit after them: "1.23 ms". */
void print_number(Cell cell, double value, const char *unit);
void print_time(Cell cell, double ms);     /* in us, ms or s */
void print_bytes(Cell cell, double bytes); /* in KiB, MiB or GiB; "0" for none */

/* Places that the UTF-8 text takes: `·` and `×` are two bytes and one place, so printf's own padding would be one short. */
int display_width(const char *text);

/* Bytes of the character that `text` begins with, 1 to 4; 0: what stands there is not UTF-8. */
int utf8_length(const char *text);

#ifdef __cplusplus
}
#endif
#endif
