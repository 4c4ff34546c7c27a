#!/usr/bin/env perl
# trace_table.pl - what the kernels of all stages do to memory, a line a variant.
#
#     perl common/classroom/trace_table.pl PROGRAM... -- OPTION...        (make trace)
#
# Runs each program with --trace --json and the options, and adds up what it prints.
use strict;
use warnings;

my (@programs, @options);
while (@ARGV) {
    my $word = shift @ARGV;
    if ($word eq '--') { @options = @ARGV; last }
    push @programs, $word;
}
die "usage: trace_table.pl PROGRAM... -- OPTION...\n" unless @programs;

print "options: @options\n\n";
my $format = "%-26s %9s %9s %9s %9s %8s %8s %9s %10s %10s %9s %6s\n";
my @above = ('', qw(read written), 'of S, P', 'each byte', qw(FLOPs sectors shared wavefronts), 'mma FLOPs', 'exp', '');
my @below = ('variant', 'KiB', 'KiB', 'KiB', 'moved', 'a byte', '/ ideal', 'KiB', '/ ideal', '/ needed', '10^3', 'races');
printf $format, @above;
printf $format, @below;
my $races = 0;
for my $program (@programs) {
    my (@order, %sum);
    for my $row (`$program --trace --json @options`) {
        my %v = $row =~ /"(\w+)": (?|"([^"]*)"|([^,}]*))/g;
        my $name = $v{variant};
        push @order, $name unless $sum{$name};
        my @sums = qw(read written scores cost ideal shared wavefronts shared_ideal exponentials mma races);
        my $s = $sum{$name} ||= {map { $_ => 0 } @sums};
        if ($v{tensor}) {
            $s->{read} += $v{bytes_read};
            $s->{written} += $v{bytes_written};
            $s->{scores} += $v{bytes_read} + $v{bytes_written} if $v{tensor} =~ /^[SP]$/;
            $s->{cost} += $v{sectors_read} + $v{sectors_written};
            $s->{ideal} += $v{ideal_read} + $v{ideal_written};
        } elsif ($v{memory}) {
            $s->{shared} += $v{bytes_read} + $v{bytes_written};
            $s->{wavefronts} += $v{wavefronts_read} + $v{wavefronts_written};
            $s->{shared_ideal} += $v{ideal_read} + $v{ideal_written};
        } elsif (exists $v{mma_flops}) {
            $s->{mma} += $v{mma_flops};
            $s->{exponentials} += $v{exponentials};
        } elsif ($v{race}) {
            $s->{races}++;
            $races++;
        } elsif ($v{attention_flops}) {
            @$s{qw(flops requested unique)} = @v{qw(attention_flops requested_bytes unique_bytes)};
        }
    }
    for my $name (@order) {
        my $s = $sum{$name};
        printf $format, $name, kib($s->{read}), kib($s->{written}), kib($s->{scores}),
            ratio($s->{requested}, $s->{unique}, '%.1f x'),
            ratio($s->{flops}, $s->{requested}, '%.1f'), ratio($s->{cost}, $s->{ideal}, '%.2f'), kib($s->{shared}),
            ratio($s->{wavefronts}, $s->{shared_ideal}, '%.2f'), ratio($s->{mma}, $s->{flops}, '%.2f'),
            sprintf('%.0f', $s->{exponentials} / 1000), $s->{races};
    }
}
exit($races > 0);

sub kib { return sprintf '%.0f', $_[0] / 1024 }
sub ratio { my ($a, $b, $format) = @_; return $a && $b ? sprintf $format, $a / $b : '-' }
