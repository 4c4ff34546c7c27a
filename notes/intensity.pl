#!/usr/bin/env perl
# intensity.pl - FLOPs a byte of every variant, counted by the trace: notes/results/intensity.tsv, for the roofline.
#
#     perl notes/intensity.pl PROGRAM...                                                             (make intensity)
#
# PROGRAMs are trace builds. One head, N = 1024, D = 128. A longer N changes little: FLOPs and bytes both grow as its square.
use strict;
use warnings;
use JSON::PP;

my $file = 'notes/results/intensity.tsv';
my @lines = ("variant\tFLOPs a byte\tbytes asked for\tif each byte moved once\n");
for my $program (@ARGV) {
    for my $row (map { decode_json($_) } grep { /attention_flops/ } `$program --trace --json --heads 1 --seqlen 1024 --head-dim 128`) {
        push @lines, join("\t", $row->{variant}, sprintf('%.4g', $row->{attention_flops} / $row->{requested_bytes}),
                          @$row{qw(requested_bytes unique_bytes)}) . "\n";
    }
    die "$program --trace: exit code ", $? >> 8, "\n" if $?;
}
open(my $out, '>', $file) or die "$file: $!\n";
print $out @lines;
close $out or die "$file: $!\n";
print "$file: ", @lines - 1, " variants\n";
