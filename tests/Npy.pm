# Npy.pm - .npy files by hand, against which the programs' own reading and writing are checked.
#
#     write_text('q.npy', npy('<f4', [1, 2, 5, 64], \@values));      '<f2': of codes
#     my ($type, $shape, $values) = read_npy('o.npy');                 ('<f2', '1,2,5,64', [...])
package Npy;
use strict;
use warnings;
use Exporter qw(import);
use Program qw(read_text);
our @EXPORT = qw(npy read_npy);

sub from_fp16 {
    my ($code) = @_;
    my ($exponent, $mantissa) = ($code >> 10 & 31, $code & 1023);
    my $value = $exponent ? (1 + $mantissa / 1024) * 2**($exponent - 15) : $mantissa / 1024 * 2**-14;
    return $code & 0x8000 ? -$value : $value;
}

my %pack = ('<f2' => sub { pack 'v*', @_ }, '<f4' => sub { pack 'f<*', @_ }, '<f8' => sub { pack 'd<*', @_ });
my %unpack = ('<f2' => sub { map { from_fp16($_) } unpack 'v*', $_[0] }, '<f4' => sub { unpack 'f<*', $_[0] });

sub npy {
    my ($type, $shape, $values) = @_;
    my $header = "{'descr': '$type', 'fortran_order': False, 'shape': (" . join(', ', @$shape) . "), }";
    $header .= ' ' x (-(length($header) + 11) % 64) . "\n";
    return "\x93NUMPY\x01\x00" . pack('v', length $header) . $header . $pack{$type}->(@$values);
}

# Type, shape and values of a file that the program wrote.
sub read_npy {
    my ($path) = @_;
    return ('missing', '', []) if !-e $path;
    my $bytes = read_text($path);
    my ($magic, $length) = unpack 'a8v', $bytes;
    my $header = substr $bytes, 10, $length;
    my ($type) = $header =~ /'descr': '([^']*)'/;
    my ($shape) = $header =~ /'shape': \(([^)]*)\)/;
    return ('broken', '', []) unless $magic eq "\x93NUMPY\x01\x00" && $unpack{$type // ''} && $header =~ /'fortran_order': False/;
    $shape =~ s/\s//g;
    return ($type, $shape, [$unpack{$type}->(substr $bytes, 10 + $length)]);
}

1;
