#!/usr/bin/env perl
# intensity.pl - FLOPs a byte of the variants of 00 to 09 but 07, counted by the trace: notes/results/intensity.tsv, for the roofline.
#
#     make trace && perl common/results/intensity.pl build/cpu-trace/0[!7]_*/0*
#
# PROGRAMs are trace builds. The figures are of one head of the ladder's problem, N = 4096, D = 128, which would take the
# trace too long. Bytes are a N² + b N, so what is counted at N = 512 and 1024 gives a and b.
use strict;
use warnings;
use JSON::PP;

my ($short, $long, $ladder) = (512, 1024, 4096);
my $file = 'notes/results/intensity.tsv';
my @lines = ("variant\tFLOPs a byte\tbytes asked for\tif each byte moved once\n");
for my $program (grep { -x } @ARGV) {
    my (@variants, %at); # rows by variant and length
    for my $length ($short, $long) {
        my @output = `$program --trace --json --heads 1 --seqlen $length --head-dim 128`;
        my @rows = map { decode_json($_) } grep { /attention_flops/ } @output;
        @variants = map { $_->{variant} } @rows;
        $at{$_->{variant}}{$length} = $_ for @rows;
    }
    for my $variant (@variants) {
        my ($flops, $requested, $unique) = map {
            my $key = $_;
            my ($least, $more) = map { $at{$variant}{$_}{$key} } $short, $long;
            my $square = ($more / $long - $least / $short) / ($long - $short);
            $square * $ladder**2 + ($least / $short - $square * $short) * $ladder
        } qw(attention_flops requested_bytes unique_bytes);
        push @lines, sprintf "%s\t%.4g\t%.0f\t%.0f\n", $variant, $flops / $requested, $requested, $unique;
    }
    die "$program --trace: exit code ", $? >> 8, "\n" if $?;
}
open(my $out, '>', $file) or die "$file: $!\n";
print $out @lines;
close $out or die "$file: $!\n";
print "$file: ", @lines - 1, " variants\n";
