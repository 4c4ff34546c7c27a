# Npy.pm - .npy files by hand, against which the programs' own reading and writing are checked.
#
#     write_bytes('q.npy', npy('<f4', [1, 2, 5, 64], \@values));
#     my ($type, $shape, $values) = read_npy('o.npy');                 ('<f2', '1,2,5,64', [...])
package Npy;
use strict;
use warnings;
use Exporter qw(import);
our @EXPORT = qw(npy read_npy write_bytes read_bytes);

sub write_bytes {
    my ($path, $bytes) = @_;
    open(my $file, '>:raw', $path) or die "$path: $!";
    print $file $bytes;
    close($file) or die "$path: $!";
}

sub read_bytes {
    my ($path) = @_;
    open(my $file, '<:raw', $path) or return undef;
    local $/;
    return <$file>;
}

# A value that fp16 holds exactly, as its code.
sub fp16 {
    my ($value) = @_;
    return 0 if $value == 0;
    my ($sign, $exponent) = ($value < 0 ? 0x8000 : 0, 15);
    $value = abs $value;
    $value /= 2, $exponent++ while $value >= 2;
    $value *= 2, $exponent-- while $value < 1 && $exponent > 0;
    return $sign | $exponent << 10 | int($exponent ? ($value - 1) * 1024 : $value * 512);
}

sub from_fp16 {
    my ($code) = @_;
    my ($exponent, $mantissa) = ($code >> 10 & 31, $code & 1023);
    my $value = $exponent ? (1 + $mantissa / 1024) * 2**($exponent - 15) : $mantissa / 1024 * 2**-14;
    return $code & 0x8000 ? -$value : $value;
}

my %pack = ('<f2' => sub { pack 'v*', map { fp16($_) } @_ }, '<f4' => sub { pack 'f<*', @_ }, '<f8' => sub { pack 'd<*', @_ });
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
    my $bytes = read_bytes($path) // return ('missing', '', []);
    my ($magic, $length) = unpack 'a8v', $bytes;
    my $header = substr $bytes, 10, $length;
    my ($type) = $header =~ /'descr': '([^']*)'/;
    my ($shape) = $header =~ /'shape': \(([^)]*)\)/;
    return ('broken', '', []) unless $magic eq "\x93NUMPY\x01\x00" && $unpack{$type // ''} && $header =~ /'fortran_order': False/;
    $shape =~ s/\s//g;
    return ($type, $shape, [$unpack{$type}->(substr $bytes, 10 + $length)]);
}

1;
