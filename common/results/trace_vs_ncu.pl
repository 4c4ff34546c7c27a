#!/usr/bin/env perl
# trace_vs_ncu.pl - what the trace counts beside what NVIDIA's profiler counts on the chip.
#
#     perl common/results/trace_vs_ncu.pl ncu build/ncu                    on a GPU, after make all: a file a variant
#     perl common/results/trace_vs_ncu.pl table build/ncu > notes/results/nvidia-h200/trace_vs_ncu.tsv     after make trace
#
# Each kernel once, on a small problem. ncu does not count what cp.async, TMA and wgmma do to shared memory, and the trace does; so
# the table has no wavefronts of kernels with wgmma, and none stored of those with cp.async. Of reductions both count what is
# written; the trace's reading is L2's. 07_flash_decoding cuts its work by the number of multiprocessors, so only one_block does the
# same on both.
use strict;
use warnings;
use JSON::PP;
use Text::ParseWords;

my ($what, $folder) = @ARGV;
die "trace_vs_ncu.pl: choose ncu or table, and a folder\n" if @ARGV != 2 || $what !~ /^(ncu|table)$/;
my $global = 'l1tex__t_sectors_pipe_lsu_mem_global_op_';
my ($wavefronts, $copies) = ('l1tex__data_pipe_lsu_wavefronts_mem_shared_op_', 'smsp__inst_executed_op_ldgsts');
my $tma = 'l1tex__m_xbar2l1tex_read_sectors_mem_global_op_tma_ld';
my @metrics = map { "$_.sum" } (map { $global . $_ } qw(ld st red atom)), "${wavefronts}ld", "${wavefronts}st", $copies, $tma;
my %problem = (shape => '--batch 4 --heads 1 --seqlen 256 --head-dim 128', decoding => '--heads 8 --kv-heads 2 --seqlen-k 1024 --head-dim 128');

my @lines = (join "\t", qw(variant kernel count trace ncu difference));
for my $stage (map { m{(.*)/main.c$} } glob '[0-9]*_*/main.c') {
    my $options = $problem{$stage =~ /decoding/ ? 'decoding' : 'shape'};
    my ($list) = `$stage/$stage --help` =~ /^variants\n(.*?)(?:\n\n|\z)/ms;
    for my $variant ($list =~ /^  (\w+)/mg) {
        next if ($variant eq '00_naive') != ($stage eq '00_naive') || "$stage/$variant" =~ /split_k|equal_shares/;
        my $file = "$folder/$stage-$variant.csv";
        if ($what eq 'ncu') {
            mkdir $folder;
            my $metrics = join ',', @metrics;
            system("ncu --clock-control none --csv --page raw --metrics $metrics $stage/$stage $options --variant $variant --no-validate --iters 1 >$file") == 0 or die "$file: ncu failed\n";
        } elsif (-e $file) {
            compare($variant eq '00_naive' ? $stage : "$stage/$variant", counted($file), traced($stage, $variant, $options));
        }
    }
}
print map { "$_\n" } @lines if $what eq 'table';

# ncu's counts, by kernel: of its last launch.
sub counted {
    my ($file) = @_;
    open my $in, '<', $file or die "$file: $!\n";
    my ($titles, %kernels);
    while (<$in>) {
        my @cells = parse_line(',', 0, $_);
        $titles = [@cells] if ($cells[0] // '') eq 'ID';
        next if !$titles || ($cells[0] // '') !~ /^\d+$/;
        my %row = map { $titles->[$_] => $cells[$_] =~ s/,//gr } 0 .. $#cells;
        my ($kernel) = $row{'Kernel Name'} =~ /^(?:void )?(\w+)/;
        $kernels{$kernel} = {map { $_ => $row{"$_.sum"} || 0 } map { s/\.sum$//r } @metrics};
    }
    return \%kernels;
}

# The trace's, by kernel and in the order of the launches.
sub traced {
    my ($stage, $variant, $options) = @_;
    my (@kernels, %counts);
    for my $row (map { decode_json($_) } `build/cpu-trace/$stage/$stage --trace --json $options --variant $variant`) {
        next if !$row->{kernel};
        push @kernels, $row->{kernel} if !$counts{$row->{kernel}}++;
        my $sum = $counts{"$row->{kernel} sum"} //= {};
        $sum->{$_} += $row->{$_} // 0 for grep { /^(sectors|wavefronts)_/ } keys %$row;
        $sum->{wgmma} = 1 if grep { /^wgmma/ } keys %$row;
    }
    return map { [$_, $counts{"$_ sum"}] } @kernels;
}

sub compare {
    my ($variant, $ncu, @traced) = @_;
    for (@traced) {
        my ($kernel, $trace) = @$_;
        my ($name) = grep { $_ eq $kernel || $_ eq "${kernel}_kernel" } keys %$ncu;
        my $chip = $name ? $ncu->{$name} : next;
        my $added = $chip->{$global . 'red'} + $chip->{$global . 'atom'};
        line($variant, $kernel, 'sectors read', $trace->{sectors_read} - $added, $chip->{$global . 'ld'} + $chip->{$tma});
        line($variant, $kernel, 'sectors written or added', $trace->{sectors_written}, $chip->{$global . 'st'} + $added);
        next if $trace->{wgmma};
        line($variant, $kernel, 'wavefronts loaded', $trace->{wavefronts_read}, $chip->{"${wavefronts}ld"});
        line($variant, $kernel, 'wavefronts stored', $trace->{wavefronts_written}, $chip->{"${wavefronts}st"}) if !$chip->{$copies};
    }
}

sub line {
    my ($variant, $kernel, $count, $trace, $ncu) = @_;
    push @lines, join "\t", $variant, $kernel, $count, $trace, $ncu, sprintf '%+.2f %%', $trace ? 100 * ($ncu / $trace - 1) : 0 if $trace || $ncu;
}
