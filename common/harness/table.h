/* table.h - the table for people. */
#ifndef FA_TABLE_H
#define FA_TABLE_H

#include "row.h"

/* The device, the problem and the columns' titles. */
void table_start(const Report *report);
void table_row(const Report *report, const Row *row);
/* Workspace by purpose, accuracy, gradients one by one. */
void table_end(const Report *report, const Row *rows, int count);

#endif
