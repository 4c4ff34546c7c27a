#!/usr/bin/env perl
# fp8_errors.pl - how far 06_fp8 is from exact attention of its inputs: formats, scales, rotation, smoothing, on three kinds of inputs.
#
#     make 06_fp8 && perl common/results/fp8_errors.pl 06_fp8/06_fp8 [OPTION VALUE]... > fp8_errors.tsv
#
# A line a combination, between tabs: RMSE and worst error of O against fp64, as the program's --json rows have them, beside
# what 00_naive makes of the same inputs in fp16. The inputs:
#
#     normal      N(0,1)
#     outliers    N(0,1), and N(0,100) on top of one in a thousand
#     biased      N(0,1), and on top of every key of a head the same vector, N(0,16): what real models' keys tend to
#
# --seeds N repeats the random inputs with N seeds and takes all their errors together: the program looks at 64 rows, and a few that
# meet outliers decide. The other options, the variant and the shape, are passed on: --help has all.
use strict;
use warnings;
use JSON::PP;
use File::Temp qw(tempdir);

my @defaults = (['variant', 'mma'], ['batch', 1], ['heads', 2], ['seqlen', 512], ['head-dim', 128], ['seeds', 1]);
my $choices = join ', ', map { "--$_->[0] $_->[1]" . ($_->[0] eq 'variant' ? ' or wgmma' : '') } @defaults;
my %option = map { @$_ } @defaults;
my ($program, @options) = @ARGV;
if (!$program || grep { $_ eq '--help' } @ARGV) {
    print "options, each with a value, here the default: $choices\n";
    exit(@ARGV ? 0 : 2);
}
while (my ($name, $value) = splice @options, 0, 2) {
    my $word = $name =~ /^--(.+)/ ? $1 : '';
    my $wanted = $word eq 'variant' ? qr/^(mma|wgmma)$/ : qr/^[1-9][0-9]*$/;
    next if exists $option{$word} && ($value // '') =~ $wanted && ($option{$word} = $value);
    print STDERR "fp8_errors.pl: $name", defined $value ? " $value" : '', ": choose of $choices, or other whole numbers\n";
    exit 2;
}
my ($batch, $heads, $seqlen, $D, $seeds) = @option{qw(batch heads seqlen head-dim seeds)};
my $variant = "06_fp8/$option{variant}";

my $folder = tempdir(CLEANUP => 1);
save_biased();
my @shape = map { ("--$_", $option{$_}) } qw(batch heads seqlen head-dim);
my @variant = ('--variant', $option{variant});
my %inputs = (normal => [@shape, '--inputs', 'normal'], outliers => [@shape, '--inputs', 'outliers'], biased => ['--load', $folder]);

my @ways = map { [split ' ', $_] } 'e4m3 tensor', 'e4m3 block', 'e4m3 tensor hadamard', 'e4m3 block hadamard',
    'e4m3 tensor smooth-k', 'e4m3 block hadamard smooth-k', 'e5m2 tensor', 'e5m2 block hadamard smooth-k';
print join("\t", 'inputs', 'format', 'scaling', 'rotated', 'smoothed', 'RMSE', 'worst error'), "\n";
for my $kind ('normal', 'outliers', 'biased') {
    my $fp16_is_there = 0;
    for my $way (@ways) {
        my ($format, $scaling, @flags) = @$way;
        my @runs = map { run($kind, $_, '--format', $format, '--scaling', $scaling, map { "--$_" } @flags) } 0 .. ($kind eq 'biased' ? 0 : $seeds - 1);
        line($kind, 'fp16', '', '', '', map { $_->{'00_naive'} } @runs) if !$fp16_is_there++;
        line($kind, $format, $scaling, (map { my $flag = $_; (grep { $_ eq $flag } @flags) ? 'yes' : '' } 'hadamard', 'smooth-k'),
             map { $_->{$variant} } @runs);
    }
}

# The rows of one run, by variant. Exit code 2 with rows: measured, but not checked. On a GPU, whose 8-bit sums are short, the bound
# for `wgmma` is too wide where keys are many.
sub run {
    my ($kind, $seed, @way) = @_;
    my $options = join ' ', @variant, @{$inputs{$kind}}, ($kind eq 'biased' ? () : ('--seed', $seed)), '--iters 1', @way;
    my %row = map { my $row = decode_json($_); ($row->{variant} => $row) } `$program --json $options`;
    die "fp8_errors.pl: $kind @way: exit code " . ($? >> 8) . "\n" if $? && $? != 2 << 8 || !$row{$variant};
    return \%row;
}

sub line {
    my ($kind, $format, $scaling, $rotated, $smoothed, @rows) = @_;
    my ($square, $worst) = (0, 0);
    for my $row (@rows) {
        $square += $row->{rmse}**2 / @rows;
        $worst = $row->{worst_fp64_error} if $row->{worst_fp64_error} > $worst;
    }
    print join("\t", $kind, $format, $scaling, $rotated, $smoothed, map { sprintf '%.2e', $_ } sqrt $square, $worst), "\n";
}

# q.npy, k.npy and v.npy: [batch, heads, seqlen, D], fp32.
sub save_biased {
    srand 1;
    for my $name ('q', 'k', 'v') {
        open my $file, '>:raw', "$folder/$name.npy" or die "$folder/$name.npy: $!\n";
        my $header = "{'descr': '<f4', 'fortran_order': False, 'shape': ($batch, $heads, $seqlen, $D), }";
        $header .= ' ' x (63 - (10 + length $header) % 64) . "\n"; # the data begin at a multiple of 64
        print $file "\x93NUMPY\x01\x00", pack('v', length $header), $header;
        for (1 .. $batch * $heads) {
            my @bias = map { $name eq 'k' ? 4 * normal() : 0 } 1 .. $D;
            print $file pack 'f<*', map { normal() + $_ } @bias for 1 .. $seqlen;
        }
        close $file or die "$folder/$name.npy: $!\n";
    }
}

# N(0,1), by Box and Muller's formula.
sub normal { return sqrt(-2 * log(1 - rand)) * cos(6.283185307179586 * rand) }
