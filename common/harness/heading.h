/* heading.h - what stands above a table: the device, and the problem. */
#ifndef FA_HEADING_H
#define FA_HEADING_H

#include "run.h"

void print_heading(const Run *run);

#endif
