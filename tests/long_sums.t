#!/usr/bin/env perl
# long_sums.t - sums over many keys or queries whose terms are all alike. Then each rounding goes the same way, and a kernel that
# adds one term after the other to one float is far off. The plain kernels do not: they add up pieces first.
use strict;
use warnings;
use Test::More;
use File::Temp qw(tempdir);
use lib 'tests';
use Npy;
use Program;

my $folder = tempdir(CLEANUP => 1);

# Tensors in fp16 in which all rows are alike, but for the signs of K's and V's in a backward stage: there they alternate, so that dQ
# is no sum of terms that cancel.
sub folder {
    my ($queries, $keys, $head_dim, $is_backward) = @_;
    my %code = (q => 0x2e66, k => 0x399a, v => 0x399a, do => 0x399a); # 0.1 and 0.7, of which sums are rounded
    for my $name (keys %code) {
        my $is_key = $name =~ /[kv]/;
        my $pair = join '', map { pack('v', $code{$name} | $_) x $head_dim } 0, $is_key && $is_backward ? 0x8000 : 0;
        my $rows = $is_key ? $keys : $queries;
        write_text("$folder/$name.npy", npy('<f2', [1, 1, $rows, $head_dim], []) . substr($pair x ($rows / 2 + 1), 0, 2 * $rows * $head_dim));
    }
    return $folder;
}

sub agrees {
    my ($stage, $variant, $dtype, $queries, $keys, $head_dim) = @_;
    my $run = run($stage, '--load', folder($queries, $keys, $head_dim, kind_of($stage) eq 'BACKWARD'), '--dtype', $dtype, '--variant', $variant, '--iters', 1);
    is($run->{code}, 0, "$stage/$variant, $dtype: $queries x $keys equal terms") or diag($run->{out}, $run->{err});
}

# 00_naive's pieces grow with the length, so that any will do; the others' are tiles, and in fp32 sums of some 30,000 tell.
agrees('00_naive', '00_naive', $_, 1, 400_000, 8) for 'fp16', 'fp32';
agrees('05_fa2_backward', '00_naive', 'fp32', @$_, 64) for [1, 60_000], [60_000, 2];
agrees('05_fa2_backward', 'fma', 'fp32', @$_, 64) for [1, 30_000], [30_000, 2];
agrees($_, 'fma', 'fp32', 1, 30_000, 64) for '01_tiled', '02_online_softmax', '03_fa1', '04_fa2';
agrees('07_flash_decoding', 'one_block', 'fp32', 1, 100_000, 64);
done_testing;
