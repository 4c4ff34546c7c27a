/* table.h - the columns of the table of rows. See table.c. */
#ifndef TABLE_H
#define TABLE_H

#include "../host/text.h"
#include "run.h"

/* clang-format off */
enum { VARIANT, DIRECTION, LATENCY, MIN, TFLOPS, DENSE, OF_PEAK, GBPS, OF_READ, OF_COPY, SIMULATED, MOVED, INTENSITY, MEMORY, VS_NAIVE,
       ERROR, COLUMN_COUNT };
/* clang-format on */

/* How wide the first column is: as the longest of the stage's names, "06_fp8/quantise+overlapped", if the line has room for it. */
int name_width(const Run *run);

/* A line of the table, with those of the cells that this device, this stage and the terminal's width show. */
void print_line(const Run *run, const Cell cells[COLUMN_COUNT]);
void print_titles(const Run *run);

#endif
