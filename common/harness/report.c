/* report.c - see report.h. */
#include "report.h"

#include "../host/errors.h"
#include "../host/text.h"
#include "details.h"
#include "heading.h"
#include "records.h"
#include "row.h"
#include "table.h"
#include "verdict.h"

#include <stdio.h>
#include <string.h>

static void table_row(const Row *row) {
    const Run *run = row->run;
    if (!row_ran(row)) {
        print_text("%-*s   %s\n", name_width(run), row->name, row->note);
        return;
    }
    Cell cells[COLUMN_COUNT], tensors, workspace;
    snprintf(cells[VARIANT], sizeof(Cell), "%s", row->name);
    snprintf(cells[DIRECTION], sizeof(Cell), "%s", passes_name(row->passes));
    print_time(cells[LATENCY], row->latency_ms);
    print_time(cells[MIN], row->min_ms);
    print_number(cells[TFLOPS], row_tflops(row), "");
    print_number(cells[DENSE], row_dense_tflops(row), "");
    print_number(cells[OF_PEAK], row_of_peak(row), "%");
    print_number(cells[GBPS], row_gbps(row), "");
    print_number(cells[OF_READ], 100 * row_gbps(row) / run->bandwidth.read_gbps, "%");
    print_number(cells[OF_COPY], 100 * row_gbps(row) / run->bandwidth.copy_gbps, "%");
    print_time(cells[SIMULATED], row->latency_ms);
    print_number(cells[INTENSITY], row_intensity(row), "");
    print_bytes(cells[MOVED], row->gpu_bytes);
    print_bytes(tensors, (double)row->tensor_bytes);
    print_bytes(workspace, (double)row->workspace_bytes);
    snprintf(cells[MEMORY], sizeof(Cell), "%.30s + %.30s", tensors, workspace);
    print_number(cells[VS_NAIVE], row->speed_ratio > 0 ? row->speed_ratio : NAN, "x");
    if (row_ok(row) && row_unchecked(row))
        strcpy(cells[ERROR], "not checked");
    else if (row->comparison_count)
        snprintf(cells[ERROR], sizeof(Cell), "%.1e / %.1e", row_worst(row)->error, row_worst(row)->allowed);
    else
        strcpy(cells[ERROR], row->role == ROW_PART ? "-" : "not validated");
    print_line(run, cells);
}

void report_start(const Run *run) {
    if (run->options->format == FORMAT_TABLE) {
        print_heading(run);
        print_titles(run);
    } else if (run->options->format == FORMAT_CSV && run->options->selected == 0)
        csv_start(run);
    flush_output(); /* a kernel may yet end the program */
}

void report_row(const Row *row) {
    if (row->run->options->format == FORMAT_TABLE)
        table_row(row);
    else
        record_row(row);
    flush_output();
}

int report_end(const Run *run) {
    if (run->options->format == FORMAT_TABLE)
        print_details(run);
    print_failures(run);
    return print_verdict(run);
}
