#!/usr/bin/env perl
# stages.t - what all stages print alike: lines of 120 places and the same fields.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Test::More;
use JSON::PP;
use Scalar::Util qw(looks_like_number);
use lib 'tests';
use Program;

my @small = ('--batch', 2, '--heads', 2, '--seqlen', 40, '--seqlen-k', 56, '--head-dim', 64, '--iters', 2);
my $on_gpu = ($ENV{TEST_DEVICE} // 'cpu') eq 'cuda';

# ---- lines for a terminal: 120 places of plain ASCII, no escapes where there is no terminal
for my $stage (grep { -x "$_/$_" } stages()) {
    my @more = (['--help'], $stage =~ /^07/ ? ['--kv-cache', 'e4m3'] : ['--mask', 'causal,full', '--seqlen', 64, '--lengths', 33]);
    my @less = $stage =~ /^07/ ? ('--seqlen-k', 2048) : ('--seqlen', 128); # a GPU's own problem takes 00_naive seconds
    for my $options (kind_of($stage) eq 'BACKWARD' || $on_gpu ? \@less : [], $on_gpu ? () : @more) {
        my $run = run($stage, '--iters', 1, @$options);
        my @long = grep { length > 120 } split /\n/, $run->{out};
        ok($run->{code} =~ /^[02]$/ && !@long, "$stage @$options: lines of at most 120 characters") or diag($run->{err}, join "\n", @long);
        unlike($run->{out} . $run->{err}, qr/[^\n\x20-\x7e]/, "$stage @$options: plain ASCII");
        like($run->{out}, qr/\n\z/, "$stage @$options: ends in a newline");
    }
}

# ---- the same names in the same order in every stage, and values of the same types: so rows of several stages go into one file
my %headings = map { (run($_, @small, '--csv', '--seqlen', 8, '--no-validate')->{out} =~ /\A(.*)\n/)[0] => 1 } stages();
is(scalar keys %headings, 1, 'CSV: one header for all stages'); # run.t has its names
my @fields = split /,/, (keys %headings)[0];
for my $stage (stages()) {
    for my $row (split /\n/, run($stage, @small, '--json', '--seqlen', 8, '--iters', 4, '--lengths', '9,50')->{out}) {
        my @names = $row =~ /"(\w+)": /g;
        is("@names", "@fields", "$stage: JSON has them in the same order");
        my %value = %{decode_json($row)};
        my @texts = grep { defined $value{$_} && !looks_like_number($value{$_}) && !ref $value{$_} } @fields;
        my @wrong = grep { !/^(stage|variant|direction|dtype|lengths|settings|inputs|l2|device|cuda|commit|note)$/ } @texts;
        is("@wrong", '', "$stage: and text only where every stage has text");
        is($value{lengths}, '9;50', "$stage: key lengths");
        is(defined $value{clock_mhz} ? 1 : 0, $on_gpu ? 1 : 0, "$stage: a clock, where there is one");
        ok(!defined $value{gpu_flops_per_byte} || $value{gpu_flops_per_byte} > 0, "$stage: no FLOPs, no FLOPs a byte");
    }
}

# ---- few random problems: a variant that takes none of them is not wrong
{
    my $build = $ENV{TEST_BUILD} // 'build/cpu';
    for my $stage (grep { -x "$build/tests/grid_$_" } stages()) {
        my $said = `$build/tests/grid_$stage --fuzz 1 2>&1`;
        ok($? == 0 && $said !~ /^not ok/m, "$stage: make fuzz N=1") or diag($said);
    }
}

done_testing;
