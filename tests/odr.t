#!/usr/bin/env perl
# odr.t - no two types of one name in a program: C++ allows a name one definition (the One Definition Rule), and a program that breaks
# that links without a word and may do anything. g++ compares the types of all files when it optimises at link time (-flto).
#
# A stage that links kernels of another one is at risk most: these are looked at always, all others with TEST_ALL=1.
use strict;
use warnings;
use Test::More;
use File::Temp 'tempdir';

my $gxx = $ENV{CXX} || 'g++';
plan skip_all => 'needs g++' if `$gxx --version 2>/dev/null` !~ /Free Software/;
my $scratch = tempdir(CLEANUP => 1);
open my $ladder, '<', 'common/ladder.txt' or die "common/ladder.txt: $!\n";
my %kernels = map { /^(\d\S+)\s+\S+\s+(\S+)/ ? ($1 => [glob("$1/*.cu"), grep { /\.cu$/ } split /,/, $2]) : () } <$ladder>;
for my $stage (sort keys %kernels) {
    my @files = @{$kernels{$stage}};
    next if !$ENV{TEST_ALL} && !grep { !m{^$stage/} } @files;
    is(types_twice(@files), '', "$stage: each type of its program has a name of its own");
}

write_text("$scratch/a.cu", "struct Twice { int a; };\nTwice one() { return {}; }\n");
write_text("$scratch/b.cu", "struct Twice { double b; };\nTwice other() { return {}; }\n");
like(types_twice("$scratch/a.cu", "$scratch/b.cu"), qr/Twice.*One Definition Rule/, 'two of one name would be seen');
done_testing;

# What g++ says of them.
sub types_twice {
    my @objects;
    for my $file (@_) {
        push @objects, "$scratch/" . @objects . '.o';
        my $said = `$gxx -x c++ -std=c++17 -O0 -w -flto -pthread -c $file -o $objects[-1] 2>&1`;
        return "$file: $said" if $? != 0;
    }
    return `$gxx -flto -Wodr -O0 -r -flinker-output=nolto-rel @objects -o $scratch/all.o 2>&1` =~ s/^.*serial compilation.*\n//mr;
}

sub write_text { open my $out, '>', $_[0] or die "$_[0]: $!\n"; print $out $_[1]; close $out or die "$_[0]: $!\n" }
