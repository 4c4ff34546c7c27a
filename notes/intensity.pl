#!/usr/bin/env perl
# intensity.pl - FLOPs a byte of every variant, counted by the trace: notes/results/intensity.tsv, for the roofline.
#
#     perl common/classroom/intensity.pl PROGRAM...                                                  (make intensity)
#
# PROGRAMs are trace builds. One head, N = 1024, D = 128. A longer N changes little: FLOPs and bytes both grow as its square.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use Rows;

my $file = 'notes/results/intensity.tsv';
my @options = qw(--trace --heads 1 --seqlen 1024 --head-dim 128);
my @lines = ("variant\tFLOPs a byte\tbytes asked for\tif each byte moved once\n");
for my $program (@ARGV) {
    show_progress(stage_of($program) . ' ...');
    my $run = measure($program, @options);
    for my $row (grep { $_->{attention_flops} } @{$run->{rows}}) {
        push @lines, join("\t", $row->{variant}, sprintf('%.4g', $row->{attention_flops} / $row->{requested_bytes}),
                          @$row{qw(requested_bytes unique_bytes)}) . "\n";
    }
}
show_progress();
open(my $out, '>', $file) or die "$file: $!\n";
print $out @lines;
close $out or die "$file: $!\n";
print "$file: ", @lines - 1, " variants\n";
