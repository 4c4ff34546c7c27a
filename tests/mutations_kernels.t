#!/usr/bin/env perl
# mutations_kernels.t - tests the tests: breaks one line of a real kernel in a scratch copy and demands that the grid notices.
#
#     make mutations-kernels               MUTATION=04.12 only this one; KERNEL_MUTANTS=100 so many, which SEED=1 chooses
#
# The mistakes stand in mutations_kernels.txt; `make bug N=04.12` plants them for a class. A mutation whose line is no longer in the
# file fails, so that the list cannot rot. Only copies of the tree are ever changed.
use strict;
use warnings;
use Digest::MD5 qw(md5_hex);
use FindBin;
use lib $FindBin::Bin;
use List::Util qw(any);
use Scratch;

my (%mutations, @numbers, %count, %stages);
for (split /\n\n+/, read_file('tests/mutations_kernels.txt') =~ s/^#.*\n//mgr) {
    my ($stage, $variant, $file, $mistake, $change) = /^\n*(\S+) (\S+) (\S+): (.*)\n((?:[-+].*\n?)+)$/ or die "not a mutation: $_\n";
    my ($from, $to) = map { my $sign = $_; join "\n", $change =~ /^\Q$sign\E ?(.*)/mg } '-', '+';
    my $of = $stage =~ m{^tests/(.*)} ? $1 : $stage =~ s/_.*//r; # two stages of one number are counted together, as bug.sh does
    my $number = "$of." . ++$count{$of};
    $stages{$stage} = 1;
    push @numbers, $number;
    $mutations{$number} = [$stage, $variant eq '-' ? '' : $variant, $file, $from, $to, $mistake];
}

my $build = $ENV{TEST_BUILD} || 'build/cpu';
my $only = $ENV{MUTATION};
die "MUTATION=$only: choose from @numbers\n" if defined $only && !$mutations{$only};
my $seed = $ENV{SEED} // 1;
my @by_chance = sort { md5_hex("$seed $a") cmp md5_hex("$seed $b") } @numbers;
my %planted = map { $_ => 1 } defined $only ? $only : splice @by_chance, 0, $ENV{KERNEL_MUTANTS} || @numbers;
in_copies($build, \&try, (defined $only ? $only : (sort(keys %stages), @numbers)));

# Where nothing is changed nothing may be caught, else all that follows would be worth nothing.
sub try_unchanged {
    my ($stage) = @_;
    my $test = test_of($stage);
    my ($built, $log) = built($test);
    return ["$stage: unchanged, it passes", $built && !is_caught("$test --quick"), $log];
}

sub test_of { return $_[0] =~ /^tests\// ? "$build/$_[0]" : "$build/tests/grid_$_[0]" } # a stage's grid, or a test of its own

# A thread order other than the usual one exposes barriers that are missing. What hangs is caught, too: unchanged, none takes
# half of that.
sub is_caught {
    my ($command) = @_;
    return any { system("ulimit -t 80; CPU_DEVICE_ORDER=$_ timeout 120 $command >/dev/null 2>&1") != 0 } ('forward', 'shuffle');
}

sub try {
    my ($number) = @_;
    return try_unchanged($number) if !$mutations{$number};
    my ($stage, $variant, $file, $from, $to, $mistake) = @{$mutations{$number}};
    my $name = "$stage" . ($variant ? "/$variant" : '') . ": $mistake";
    my $source = read_file($file);
    (my $mutated = $source) =~ s/\Q$from\E/$to/g; # everywhere in the file
    return ["$name (mutation $number: the line is no longer in $file)", 0] if $mutated eq $source;
    return ["$name: its line is there", 1] if !$planted{$number};

    return with_file($file, $mutated, sub {
        my $test = test_of($stage);
        my $option = $variant ? "--variant $variant" : '';
        # The variant's kernel alone, of all that include a changed header. Only if that is not caught the others, too.
        my $kernel = "$build/$stage/$variant.cu.o";
        my @others = $file =~ /\.cuh$/ && -e $kernel ? map { "-o $_" } grep { $_ ne $kernel } glob "$build/*/*.cu.o" : ();
        for my $kept ((@others ? \@others : ()), []) {
            my ($built, $log) = built($test, "'KERNEL_OPTIMISE=-Og -g0'", @$kept); # compiles in a quarter of the time
            return ["$name (mutation $number does not compile)", 0, $log] if !$built;
            return [$name, 1] if is_caught("$test --quick $option");
        }
        # What the eighth misses, a third of the points may see. With more blocks at once than cores, their order differs in every run.
        return [$name, system("CPU_DEVICE_THREADS=8 $test $option >/dev/null 2>&1") != 0];
    });
}
